"""Operators of one tenant, over gRPC: they hold tasks, read tombstones, and have these forgotten, by two people."""

import asyncio
from typing import Any, Final

from taskstore.v1 import retention_pb2

from tests.robustness.clients.state import REMOVED_TENANT, Client, Shared
from tests.robustness.clients.wire import Api, ask
from tests.robustness.history import now_us

ONE: Final = "ann"
ANOTHER: Final = "bob"
_PAUSE_SECONDS: Final = 0.3
_MOST_HELD: Final = 20
_CLEANUP_MS: Final = 5_000
_APPROVAL_MS: Final = 60_000


class Operator(Client):
    """Whatever goes wrong on the way is left as it is: the next thing begins anew."""

    def __init__(self, name: str, shared: Shared, seed: int, apis: list[Api]) -> None:
        super().__init__(name, shared, seed)
        self._apis = apis
        self._held: list[tuple[int, str]] = []
        self._last_cursor = 0

    @property
    def _api(self) -> Api:
        return self.draw.choice(self._apis)

    async def act(self) -> None:
        """Does one thing, and not too often."""
        await asyncio.sleep(_PAUSE_SECONDS)
        chance = self.draw.random()
        if chance < 0.35 and len(self._held) < _MOST_HELD:
            await self._hold()
        elif chance < 0.55:
            await self._release()
        elif chance < 0.85:
            await self._read_tombstones()
        else:
            await self._purge()

    async def _hold(self) -> None:
        if not (some := self.shared.some(self.draw, REMOVED_TENANT, 40)):
            return
        known = self.draw.choice(some)
        request = retention_pb2.PlaceHoldRequest(tenant_id=REMOVED_TENANT, task_id=known.task, reason="a case", principal=ONE)
        answer = await self._say("place hold", self._api.governance.PlaceHold, request, task=known.task)
        if answer is not None and not answer.replayed:
            self._held.append((answer.hold.number, known.task))

    async def _release(self) -> None:
        """Says it until it is answered: before that nobody knows when the hold will end."""
        if not self._held:
            return
        number, task = self._held.pop(self.draw.randrange(len(self._held)))
        request = retention_pb2.ReleaseHoldRequest(tenant_id=REMOVED_TENANT, number=number, principal=ONE)
        while not self.shared.is_over:
            if await self._say("release hold", self._api.governance.ReleaseHold, request, task=task) is not None:
                return
            await self.shared.pace()

    async def _read_tombstones(self) -> None:
        after = self.draw.choice((0, self._last_cursor, max(0, self._last_cursor - 50)))
        request = retention_pb2.ListTombstonesRequest(tenant_id=REMOVED_TENANT, after_cursor=after, page_size=100)
        invoked = now_us()
        outcome, answer = await ask(self._api.retention.ListTombstones, request)
        seen = [each.cursor for each in answer.tombstones] if answer is not None else []
        self.note("tombstones", invoked, outcome, tenant=REMOVED_TENANT, after=after, seen=seen)
        self._last_cursor = max(self._last_cursor, *seen, 0)

    async def _purge(self) -> None:
        claim = retention_pb2.ClaimCleanupRequest(
            tenant_id=REMOVED_TENANT, owner_id=self.name, lease_ms=_CLEANUP_MS, principal=ONE
        )  # fmt: skip
        claimed = await self._say("claim cleanup", self._api.retention.ClaimCleanup, claim)
        if claimed is None or not claimed.HasField("lease"):
            return  # a store has it
        lease = claimed.lease
        prepare = retention_pb2.PreparePurgeRequest(
            lease=lease, request_id=self.new_id(), retention_ms=self.draw.choice((1, 2_000)), limit=self.draw.randint(1, 50),
            approval_ms=_APPROVAL_MS, principal=ONE,
        )  # fmt: skip
        prepared = await self._say("prepare purge", self._api.governance.PreparePurge, prepare)
        if prepared is not None:
            await self._decide(lease, prepared.purge.number)
        release = retention_pb2.ReleaseCleanupRequest(lease=lease, principal=ONE)
        await self._say("release cleanup", self._api.retention.ReleaseCleanup, release)

    async def _decide(self, lease: retention_pb2.CleanupLease, number: int) -> None:
        """Another looks at it, and mostly approves."""
        governance = self._api.governance
        claim = retention_pb2.ClaimPurgeRequest(tenant_id=REMOVED_TENANT, number=number, lease_ms=5_000, principal=ANOTHER)
        claimed = await self._say("claim purge", governance.ClaimPurge, claim)
        if claimed is None or not claimed.HasField("purge"):
            return
        fields = {"tenant_id": REMOVED_TENANT, "number": number, "claim_token": claimed.claim_token, "principal": ANOTHER}
        if self.draw.random() < 0.2:
            reject = retention_pb2.RejectPurgeRequest(**fields, reason="not yet")
            await self._say("reject purge", governance.RejectPurge, reject)
            return
        await self._say("approve purge", governance.ApprovePurge, retention_pb2.ApprovePurgeRequest(**fields))
        execute = retention_pb2.ExecutePurgeRequest(lease=lease, number=number, principal=ONE)
        await self._say("purge", self._api.governance.ExecutePurge, execute)

    async def _say(self, op: str, method: Any, request: Any, *, task: str = "") -> Any:
        """The answer, or None."""
        invoked = now_us()
        outcome, answer = await ask(method, request)
        self.note(op, invoked, outcome, tenant=REMOVED_TENANT, task=task)
        return answer
