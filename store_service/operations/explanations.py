"""Why tasks are where they are, and who asks for work."""

import contextlib
from typing import Final

from store_service.db.explanations import ExplanationRows
from store_service.db.pool import Moved
from store_service.model.explanations import Explanation, explain
from store_service.model.leases import Claim, Registration
from store_service.model.refusals import Reason, Refusal
from store_service.model.tasks import TaskRef

RECORD_SECONDS: Final = 5.0
"""How often what was heard is written down."""
MOST_HEARD: Final = 10_000
"""What is remembered in between at most; past it, claims of other kinds are not."""
MOST_LISTED: Final = 1_000
FORGET_MS: Final = 86_400_000
FORGET_BATCH: Final = 1_000


class Registrations:
    """What workers ask for, written down now and then."""

    def __init__(self, rows: ExplanationRows) -> None:
        self._rows = rows
        self._heard: set[tuple[tuple[str, ...], tuple[tuple[str, int], ...]]] = set()

    def hear(self, claim: Claim) -> None:
        """A worker asks for work."""
        if len(self._heard) < MOST_HEARD:
            workflows = tuple((one.workflow, one.version) for one in claim.workflows)
            self._heard.add((claim.tenant_ids, workflows))

    async def record(self) -> None:
        """Writes down what was heard since the last time."""
        heard, self._heard = self._heard, set()
        asked = {(tenant_id, *one) for tenant_ids, workflows in heard for tenant_id in tenant_ids or ("",) for one in workflows}
        if not asked:
            return
        try:
            try:
                await self._rows.record_registrations(sorted(asked)[:MOST_HEARD])
            except Moved as moved:
                if left := [one for one in sorted(asked) if one[0] not in moved.tenants]:
                    await self._rows.record_registrations(left[:MOST_HEARD])
        except Refusal:
            self._heard |= heard
            raise

    async def try_record(self) -> None:
        """Writes down what was heard if that can be done now; if not, whoever asks is told a little less."""
        with contextlib.suppress(Refusal):
            await self.record()

    async def list_registrations(self, tenant_id: str) -> list[Registration]:
        """What workers asked for on behalf of a tenant, by name."""
        await self.try_record()
        return await self._rows.list_registrations(tenant_id, MOST_LISTED)

    async def forget(self) -> None:
        """Forgets what nobody asked for during a day."""
        await self._rows.forget_registrations(FORGET_MS, FORGET_BATCH)


class Explanations:
    """Why tasks are where they are."""

    def __init__(self, rows: ExplanationRows, registrations: Registrations) -> None:
        self._rows = rows
        self._registrations = registrations

    async def explain_task(self, ref: TaskRef) -> Explanation:
        """One cause, since when, and a sentence."""
        await self._registrations.try_record()
        situation = await self._rows.read_situation(ref)
        if situation is None:
            raise Refusal(Reason.TASK_NOT_FOUND)
        return explain(situation)
