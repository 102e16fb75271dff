"""Why tasks are where they are, and who asks for work."""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
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
MOST_RECORDED: Final = 10_000
"""What is written down at once; a claim may name as many tenants and workflows as come to fifty times that."""
MOST_LISTED: Final = 1_000
FORGET_MS: Final = 86_400_000
FORGET_BATCH: Final = 1_000

Heard = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]
"""The tenants and the workflows of a claim."""
Asked = tuple[str, str, int]
"""A tenant, or an empty text for all of them, a workflow, and its version."""


class Registrations:
    """What workers ask for, written down now and then."""

    def __init__(self, rows: ExplanationRows) -> None:
        self._rows = rows
        self._heard: set[Heard] = set()
        self._left: Iterator[Asked] = iter(())
        self._again: list[Asked] = []

    def hear(self, claim: Claim) -> None:
        """A worker asks for work."""
        if len(self._heard) < MOST_HEARD:
            workflows = tuple((one.workflow, one.version) for one in claim.workflows)
            self._heard.add((claim.tenant_ids, workflows))

    async def record(self) -> None:
        """Writes down what was heard since the last time, or as much of it as may be at once."""
        if not (taken := self._take()):
            return
        asked = sorted(set(taken))
        try:
            try:
                await self._rows.record_registrations(asked)
            except Moved as moved:
                if left := [one for one in asked if one[0] not in moved.tenants]:
                    await self._rows.record_registrations(left)
        except Refusal:
            self._again = asked
            raise

    def _take(self) -> list[Asked]:
        """What comes next of what was heard, and was not written down yet."""
        taken, self._again = self._again, []
        taken += islice(self._left, MOST_RECORDED - len(taken))
        if len(taken) < MOST_RECORDED:
            heard, self._heard = self._heard, set()
            self._left = _asked(heard)
            taken += islice(self._left, MOST_RECORDED - len(taken))
        return taken

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


def _asked(heard: Iterable[Heard]) -> Iterator[Asked]:
    return ((tenant_id, *one) for tenant_ids, workflows in heard for tenant_id in tenant_ids or ("",) for one in workflows)


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
