"""What may be forgotten for good, once it is kept elsewhere and a second person agrees."""

import hashlib
from collections.abc import Sequence

from store_service.db.purges import PurgeRows
from store_service.model.purges import NewPurge, Purge, PurgeEvidence, PurgeState, TombstoneExport
from store_service.model.refusals import Reason, Refusal, invalid
from store_service.model.retention import CleanupLease

_CONFLICTS = {
    "DECIDED": "the purge was decided already; list the purges",
    "EXPIRED": "the purge was not executed in time, and never will be; prepare another",
    "CLAIMED": "another principal has claimed the purge; wait for the decision or for the end of the claim",
    "NOT_APPROVED": "the purge is not approved",
    "HELD": "one of the purge's tombstones is held; end the hold, or reject the purge",
    "CHANGED": "the purge's tombstones are not what was prepared; reject it and prepare another",
}


class Purges:
    """Exports, purges and their evidence."""

    def __init__(self, rows: PurgeRows) -> None:
        self._rows = rows

    async def confirm_export(
        self, tenant_id: str, through_cursor: int, *, receipt: str, principal: str
    ) -> TombstoneExport:  # fmt: skip
        """Notes that tombstones are kept elsewhere; it never goes back. The same again is answered the same."""
        outcome, exported = await self._rows.confirm_export(tenant_id, through_cursor, receipt, principal)
        if exported is None:
            raise invalid("through_cursor", "must not be past the tenant's last tombstone")
        if outcome != "OK":
            raise Refusal(Reason(outcome))
        return exported

    async def list_unexported_tenants(self, *, after_tenant_id: str, limit: int) -> tuple[list[str], str | None]:
        """Of so many tenants, those with tombstones that are not kept elsewhere yet; and where to look on, None at the end."""
        looked = await self._rows.list_unexported_tenants(after_tenant_id, limit)
        return [tenant_id for tenant_id, unexported in looked if unexported], looked[-1][0] if len(looked) == limit else None

    async def prepare_purge(self, lease: CleanupLease, new: NewPurge) -> Purge:
        """Prepares to forget the oldest tombstones of which all allows it. The same request again is answered the same."""
        digest = hashlib.sha256(repr((lease.principal, new)).encode()).digest()
        return _decided(*await self._rows.prepare_purge(lease, new, digest))

    async def list_purges(
        self, tenant_id: str, *, after_number: int, limit: int, states: Sequence[PurgeState]
    ) -> list[Purge]:  # fmt: skip
        """A page of purges, oldest first; no states means all."""
        return await self._rows.list_purges(tenant_id, after_number, limit, states)

    async def claim_purge(self, tenant_id: str, number: int, *, principal: str, lease_ms: int) -> Purge | None:
        """Takes the oldest purge that waits for somebody else's decision, or this one; None where there is none to take."""
        outcome, purge = await self._rows.claim_purge(tenant_id, number, principal, lease_ms)
        if outcome != "OK":
            raise Refusal(Reason(outcome))
        return purge

    async def approve_purge(self, tenant_id: str, number: int, *, claim_token: int, principal: str) -> Purge:
        """Approves it, under a claim or directly, as another than who prepared it."""
        return _decided(*await self._rows.decide_purge(tenant_id, number, claim_token, principal, None))

    async def reject_purge(self, tenant_id: str, number: int, *, claim_token: int, reason: str, principal: str) -> Purge:
        """Rejects it for good."""
        return _decided(*await self._rows.decide_purge(tenant_id, number, claim_token, principal, reason))

    async def execute_purge(self, lease: CleanupLease, number: int) -> PurgeEvidence:
        """Forgets its tombstones, all or none, and leaves the evidence."""
        outcome, evidence = await self._rows.execute_purge(lease, number)
        if outcome != "OK" or evidence is None:
            raise _refusal(outcome)
        return evidence

    async def get_purge_evidence(self, tenant_id: str, number: int) -> PurgeEvidence:
        """What an executed purge left."""
        evidence = await self._rows.get_purge_evidence(tenant_id, number)
        if evidence is None:
            raise Refusal(Reason.PURGE_NOT_FOUND)
        return evidence


def _decided(outcome: str, purge: Purge | None) -> Purge:
    if outcome != "OK" or purge is None:
        raise _refusal(outcome)
    return purge


def _refusal(outcome: str) -> Refusal:
    if outcome in _CONFLICTS:
        return Refusal(Reason.PURGE_CONFLICT, _CONFLICTS[outcome])
    return Refusal(Reason.SECOND_PERSON_REQUIRED if outcome == "OWN" else Reason(outcome))
