"""What must be kept, and what may be forgotten for good. Source: store contract, section 14."""

import hashlib
from collections.abc import Sequence
from typing import Final

from tests.model.contract.checks import MS, YEARS, Answer, Refused, check, is_id, is_name, is_text, lean, page
from tests.model.contract.retention import Retention, is_lease_ms, is_principal
from tests.model.contract.rows import CleanupLease, Purge
from tests.model.contract.tenants import Tenants

PURGE_STATES: Final = ("PENDING", "CLAIMED", "APPROVED", "REJECTED", "EXPIRED", "EXECUTED")


def is_line(text: str, most_bytes: int) -> bool:
    """A bounded text without control characters."""
    return is_text(text, most_bytes) and all(ord(one) >= 32 and ord(one) != 127 for one in text)


class Governance(Tenants, Retention):
    """Holds, exports, purges and their evidence."""

    def get_retention(self, *, tenant_id: str) -> Answer:
        """How far it has come."""
        check(is_name(tenant_id))
        tenant = self._tenant(tenant_id)
        due, held = self._due(tenant_id), tenant.cleanup
        is_held = held is not None and bool(held.owner_id) and held.expires_at > self.now
        return lean(
            tenant_id=tenant_id, due_since=due[0][0] if due else None, last_cursor=tenant.last_cursor,
            exported=tenant.exports[-1] if tenant.exports else None, cleanup_owner_id=held.owner_id if held and is_held else "",
            cleanup_expires_at=held.expires_at if held and is_held else None,
            purges_waiting=sum(one.state == "PENDING" and one.is_open(self.now) for one in tenant.purges),
            holds=sum("released_by" not in hold for hold in tenant.holds),
        )  # fmt: skip

    def confirm_export(self, *, tenant_id: str, through_cursor: int, receipt: str, principal: str) -> Answer:
        """Never back, and one receipt for each."""
        check(is_name(tenant_id) and is_line(receipt, 512) and is_principal(principal))
        tenant = self._tenant_or_new(tenant_id)
        check(1 <= through_cursor <= tenant.last_cursor)
        for known in tenant.exports:
            if known["through_cursor"] >= through_cursor:
                if (known["through_cursor"], known["receipt"]) != (through_cursor, receipt):
                    raise Refused("EXPORT_CONFLICT")
                return {"exported": known}
        tenant.exports.append({
            "tenant_id": tenant_id, "through_cursor": through_cursor, "receipt": receipt, "confirmed_by": principal,
            "confirmed_at": self.now,
        })  # fmt: skip
        return {"exported": tenant.exports[-1]}

    def prepare_purge(
        self, *, lease: CleanupLease, request_id: str, retention_ms: int, approval_ms: int, principal: str, limit: int = 0
    ) -> Answer:
        """Of the oldest tombstones, those of which all allows it."""
        check(lease.is_formed and is_principal(principal) and is_text(request_id, 128) and 0 <= limit <= 1_000)
        check(1 <= retention_ms < 10 * YEARS and 1 <= approval_ms < 10 * YEARS)
        tenant, asked = self._tenant_or_new(lease.tenant_id), (principal, retention_ms, limit or 100, approval_ms)
        for purge in tenant.purges:
            if purge.request_id == request_id:
                if purge.asked != asked:
                    raise Refused("REQUEST_ID_CONFLICT")
                return {"purge": purge.shown(self.now)}
        self._cleanup(lease, principal)
        if not tenant.exports:
            raise Refused("NOT_EXPORTED")
        watermark = tenant.exports[-1]["through_cursor"]
        taken = [item["cursor"] for one in tenant.purges if one.is_open(self.now) for item in one.items]
        items = page([
            stone for stone in tenant.tombstones
            if stone["cursor"] <= watermark and stone["removed_at"] <= self.now - retention_ms * MS
            and not tenant.is_held(stone["task_id"]) and stone["cursor"] not in taken
        ], limit)  # fmt: skip
        if not items:
            raise Refused("NOTHING_TO_PURGE")
        lines = "".join(f"{item['cursor']} {item['task_id']}\n" for item in items)
        about = {
            "tenant_id": lease.tenant_id, "number": len(tenant.purges) + 1, "prepared_by": principal, "prepared_at": self.now,
            "deadline_at": self.now + approval_ms * MS, "tombstones": len(items), "first_cursor": items[0]["cursor"],
            "last_cursor": items[-1]["cursor"], "watermark": watermark, "fingerprint": hashlib.sha256(lines.encode()).digest(),
        }  # fmt: skip
        tenant.purges.append(Purge(asked, request_id, about, items))
        return {"purge": tenant.purges[-1].shown(self.now)}

    def list_purges(
        self, *, tenant_id: str, states: Sequence[str | int] = (), after_number: int = 0, page_size: int = 0
    ) -> Answer:  # fmt: skip
        """Oldest first."""
        check(is_name(tenant_id) and after_number >= 0 and 0 <= page_size <= 1_000)
        check(all(state in PURGE_STATES for state in states))
        shown = [one.shown(self.now) for one in self._tenant_or_new(tenant_id).purges]
        wanted = [one for one in shown if one["number"] > after_number and (not states or one["state"] in states)]
        return lean(purges=page(wanted, page_size))

    def claim_purge(self, *, tenant_id: str, lease_ms: int, principal: str, number: int = 0) -> Answer:
        """The oldest one that somebody else prepared, and nobody else has taken."""
        check(is_name(tenant_id) and number >= 0 and is_lease_ms(lease_ms) and is_principal(principal))
        tenant = self._tenant_or_new(tenant_id)
        for one in tenant.purges:
            is_open = one.state == "PENDING" and one.is_open(self.now) and one.about["prepared_by"] != principal
            is_free = not one.is_claimed(self.now) or one.reviewer == principal
            if number in (0, one.about["number"]) and is_open and is_free:
                one.reviewer, one.token = principal, one.token + 1
                one.claim_expires_at = min(self.now + lease_ms * MS, one.about["deadline_at"])
                return {"purge": one.shown(self.now), "claim_token": one.token}
        if number > len(tenant.purges):
            raise Refused("PURGE_NOT_FOUND")
        return {}

    def approve_purge(self, *, tenant_id: str, number: int, principal: str, claim_token: int = 0) -> Answer:
        """As another than who prepared it."""
        check(is_name(tenant_id) and number >= 0 and claim_token >= 0 and is_principal(principal))
        return self._decide(tenant_id, number, claim_token, principal, "")

    def reject_purge(self, *, tenant_id: str, number: int, reason: str, principal: str, claim_token: int = 0) -> Answer:
        """For good."""
        check(is_name(tenant_id) and number >= 0 and claim_token >= 0 and is_principal(principal) and is_line(reason, 1_024))
        return self._decide(tenant_id, number, claim_token, principal, reason)

    def _decide(self, tenant_id: str, number: int, token: int, principal: str, rejection: str) -> Answer:
        purge = self._purge(tenant_id, number)
        if purge.decided_by != principal or (purge.state == "REJECTED") != bool(rejection):
            is_claimed = purge.is_claimed(self.now)
            presented = (principal, token)
            if token and (purge.state != "PENDING" or not is_claimed or presented != (purge.reviewer, purge.token)):
                raise Refused("LEASE_LOST")
            if purge.state != "PENDING" or not purge.is_open(self.now):
                raise Refused("PURGE_CONFLICT")
            if not token and is_claimed and purge.reviewer != principal:
                raise Refused("PURGE_CONFLICT")
            if not rejection and purge.about["prepared_by"] == principal:
                raise Refused("SECOND_PERSON_REQUIRED")
            purge.state = "REJECTED" if rejection else "APPROVED"
            purge.decided_by, purge.decided_at, purge.rejection = principal, self.now, rejection
        return {"purge": purge.shown(self.now)}

    def execute_purge(self, *, lease: CleanupLease, number: int, principal: str) -> Answer:
        """All or none, and the evidence."""
        check(lease.is_formed and number >= 0 and is_principal(principal))
        purge, tenant = self._purge(lease.tenant_id, number), self._tenant_or_new(lease.tenant_id)
        if purge.evidence is None:
            self._cleanup(lease, principal)
            is_held = any(tenant.is_held(item["task_id"]) for item in purge.items)
            if purge.state != "APPROVED" or not purge.is_open(self.now) or is_held:
                raise Refused("PURGE_CONFLICT")
            for item in purge.items:
                tenant.tombstones.remove(item)
            about, watermark = purge.about, purge.about["watermark"]
            (receipt,) = [one["receipt"] for one in tenant.exports if one["through_cursor"] == watermark]
            names = ("tenant_id", "number", "prepared_by", "prepared_at", "tombstones", "first_cursor", "last_cursor",
                     "watermark", "fingerprint")  # fmt: skip
            purge.evidence = {name: about[name] for name in names} | {
                "approved_by": purge.decided_by, "approved_at": purge.decided_at, "executed_by": principal,
                "executed_at": self.now, "cleanup_token": lease.token, "receipt": receipt,
            }  # fmt: skip
            purge.state = "EXECUTED"
        return {"evidence": purge.evidence}

    def get_purge_evidence(self, *, tenant_id: str, number: int) -> Answer:
        """What an executed one left."""
        check(is_name(tenant_id) and number >= 0)
        evidence = self._purge(tenant_id, number).evidence
        if evidence is None:
            raise Refused("PURGE_NOT_FOUND")
        return {"evidence": evidence}

    def _purge(self, tenant_id: str, number: int) -> Purge:
        purges = self._tenant_or_new(tenant_id).purges
        if not 1 <= number <= len(purges):
            raise Refused("PURGE_NOT_FOUND")
        return purges[number - 1]

    def place_hold(self, *, tenant_id: str, task_id: str, reason: str, principal: str) -> Answer:
        """A task or what is left of it; one at a time."""
        check(is_name(tenant_id) and is_id(task_id) and is_text(reason, 1_024) and is_principal(principal))
        tenant = self._tenant_or_new(tenant_id)
        holds = [hold for hold in tenant.holds if hold["task_id"] == task_id]
        for hold in holds:
            if "released_by" not in hold:
                return {"hold": hold.copy(), "replayed": True}
        if (tenant_id, task_id) not in self.tasks and all(one["task_id"] != task_id for one in tenant.tombstones):
            raise Refused("TASK_NOT_FOUND")
        placed = lean(
            tenant_id=tenant_id, number=len(tenant.holds) + 1, task_id=task_id, generation=len(holds) + 1, reason=reason,
            placed_by=principal, placed_at=self.now,
        )  # fmt: skip
        tenant.holds.append(placed)
        return {"hold": placed.copy()}

    def release_hold(self, *, tenant_id: str, number: int, principal: str) -> Answer:
        """Once; whoever did may say it again."""
        check(is_name(tenant_id) and number >= 0 and is_principal(principal))
        for hold in self._tenant_or_new(tenant_id).holds:
            if hold["number"] == number:
                if hold.setdefault("released_by", principal) != principal:
                    raise Refused("HOLD_RELEASED")
                hold.setdefault("released_at", self.now)
                return {"hold": hold.copy()}
        raise Refused("HOLD_NOT_FOUND")

    def list_holds(
        self, *, tenant_id: str, task_id: str = "", active: bool = False, after_number: int = 0, page_size: int = 0
    ) -> Answer:  # fmt: skip
        """In the order in which they were placed."""
        check(is_name(tenant_id) and (not task_id or is_id(task_id)) and after_number >= 0 and 0 <= page_size <= 1_000)
        known = [
            hold.copy()
            for hold in self._tenant_or_new(tenant_id).holds
            if task_id in ("", hold["task_id"]) and not (active and "released_by" in hold) and hold["number"] > after_number
        ]
        return lean(holds=page(known, page_size))
