"""Workers without the library, many tasks at a time: they do it right most of the time, and now and then what they must not."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from taskstore.v1 import leases_pb2, types_pb2

from tests.robustness.clients.state import Client, Shared
from tests.robustness.clients.wire import Api, ask, is_unheard, outcome_of
from tests.robustness.history import digest, now_us

LEASE_MS: Final = 2_000
_BATCH: Final = 25


def _result(text: str) -> bytes:
    """JSON that nobody writes again as it is: within its members, spaces, an order, numbers and escapes of its own."""
    odd = '"structuredContent":{"z": 1.50, "a": 12345678901234567890123,"nul": "\\u0000", "e": "\\u00e9"}'
    return f'{{"content":[{{"type":"text", "text": "{text}"}}],{odd}}}'.encode()


class Lessee(Client):
    """Leases, heartbeats, checkpoints, ends."""

    def __init__(self, name: str, shared: Shared, seed: int, apis: list[Api], *, is_tidy: bool = False) -> None:
        super().__init__(name, shared, seed)
        self._is_tidy = is_tidy
        self._apis = apis
        self._lease_ms = 10_000 if is_tidy else LEASE_MS
        self._worker = f"{name}-l{self._lease_ms}"
        self._old: list[types_pb2.Lease] = []
        """Leases that are over, and should be worth nothing."""

    @property
    def _api(self) -> Api:
        return self.draw.choice(self._apis)

    async def act(self) -> None:
        """Takes some tasks and does what is to be done, or something else."""
        taken = await self._lease()
        if stale := self._stale(taken):
            await self._misuse(stale)
        if taken:
            await self._work(taken)
        if self._old and not self._is_tidy and self.draw.random() < 0.3:
            await self._misuse(self.draw.sample(self._old, min(5, len(self._old))))
        del self._old[:-50]

    def _stale(self, taken: Sequence[leases_pb2.LeasedTask]) -> list[types_pb2.Lease]:
        """Leases of before, of what it holds anew: all but their token is that of now."""
        held = {each.lease.task_id for each in taken}
        return [] if self._is_tidy else [lease for lease in self._old if lease.task_id in held]

    async def _lease(self) -> list[leases_pb2.LeasedTask]:
        request = leases_pb2.LeaseTasksRequest(
            request_id=self.new_id(), worker_id=self._worker, lease_ms=self._lease_ms, wait_ms=300,
            limit=100 if self._is_tidy else self.draw.randint(1, _BATCH),
            workflows=[leases_pb2.WorkflowVersion(workflow="raw", version=1)],
        )  # fmt: skip
        for _ in range(2):  # once more with the same id, when the answer was lost
            invoked = now_us()
            outcome, answer = await ask(self._api.leases.LeaseTasks, request)
            tasks = list(answer.tasks) if answer is not None else []
            if not tasks:
                self.note("lease", invoked, outcome)
            for each in tasks:
                self._said("lease", invoked, "ok", each.lease)
            if not is_unheard(outcome):
                break
        return tasks

    def _said(self, op: str, invoked: int, outcome: str, lease: types_pb2.Lease, **detail: object) -> None:
        held = {"token": lease.token, "worker": lease.worker_id}
        self.note(op, invoked, outcome, tenant=lease.tenant_id, task=lease.task_id, **held, **detail)

    async def _work(self, taken: Sequence[leases_pb2.LeasedTask]) -> None:
        leases = [each.lease for each in taken]
        for turn in range(self.draw.randint(0, 1) if self._is_tidy else self.draw.randint(1, 3)):
            await self._heartbeat(leases)
            await self._checkpoint(leases, [each.checkpoints + turn for each in taken])
            if not self._is_tidy and self.draw.random() < 0.15:
                await asyncio.sleep(LEASE_MS / 1000 * self.draw.uniform(0.5, 1.6))  # and may so lose them
        chance = self.draw.random()
        if chance < 0.75 or self._is_tidy:
            await self._complete(leases)
        elif chance < 0.85:
            await self._one_by_one(leases, "release")
        elif chance < 0.95:
            await self._one_by_one(leases, "fail")
        self._old += leases  # or they are left to run out

    async def _heartbeat(self, leases: Sequence[types_pb2.Lease]) -> None:
        items = [leases_pb2.HeartbeatTaskRequest(lease=lease, lease_ms=self._lease_ms) for lease in leases]
        request = leases_pb2.HeartbeatTasksRequest(items=items)
        await self._batch("heartbeat", self._api.leases.HeartbeatTasks, request, leases, "extended")

    async def _checkpoint(self, leases: Sequence[types_pb2.Lease], revisions: Sequence[int]) -> None:
        items = [
            leases_pb2.AppendCheckpointRequest(
                lease=lease, revision=revision, step=f"s{revision}", payload=types_pb2.Payload(data=b'{"done": true}')
            )
            for lease, revision in zip(leases, revisions, strict=True)
        ]
        request = leases_pb2.AppendCheckpointsRequest(items=items)
        details = [{"revision": revision} for revision in revisions]
        await self._batch("append", self._api.leases.AppendCheckpoints, request, leases, "appended", details)

    async def _complete(self, leases: Sequence[types_pb2.Lease]) -> None:
        results = [_result(f"canary-{lease.tenant_id}.{lease.task_id}.{lease.token}") for lease in leases]
        items = [
            leases_pb2.CompleteTaskRequest(lease=lease, result=types_pb2.Payload(data=data))
            for lease, data in zip(leases, results, strict=True)
        ]
        request = leases_pb2.CompleteTasksRequest(items=items)
        details = [{"result": digest(data)} for data in results]
        for _ in range(1 if self.draw.random() < 0.9 else 2):  # a repetition is answered as the first time
            await self._batch("complete", self._api.leases.CompleteTasks, request, leases, "completed", details)

    async def _one_by_one(self, leases: Sequence[types_pb2.Lease], op: str) -> None:
        error = types_pb2.TaskError(code=-32000, message="as wished")
        retry = leases_pb2.RetryPolicy(max_attempts=4, initial_backoff_ms=20, max_backoff_ms=500)
        for lease in leases:
            invoked = now_us()
            if op == "fail":
                request: Any = leases_pb2.FailTaskRequest(lease=lease, error=error, retry=retry)
                outcome, _ = await ask(self._api.leases.FailTask, request)
            else:
                request = leases_pb2.ReleaseTaskRequest(lease=lease, delay_ms=self.draw.choice((0, 50)))
                outcome, _ = await ask(self._api.leases.ReleaseTask, request)
            self._said(op, invoked, outcome, lease)

    async def _misuse(self, leases: Sequence[types_pb2.Lease]) -> None:
        """What a worker says that does not know yet: nothing of it may be taken."""
        await self._heartbeat(leases)
        await self._checkpoint(leases, [self.draw.randint(0, 4) for _ in leases])
        chance = self.draw.random()
        if chance < 0.4:
            await self._complete(leases)
        elif chance < 0.8:
            await self._suspend(leases)

    async def _suspend(self, leases: Sequence[types_pb2.Lease]) -> None:
        """To wait for the signal that callers send."""
        wait = leases_pb2.NewSignalWait(name="go", timeout_ms=LEASE_MS)
        for lease in leases:
            request = leases_pb2.SuspendTaskRequest(lease=lease, step="go", signal=wait)
            await ask(self._api.leases.SuspendTask, request)

    async def _batch(
        self, op: str, method: Any, request: Any, leases: Sequence[types_pb2.Lease], done: str,
        details: Sequence[dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        invoked = now_us()
        heard, answer = await ask(method, request)
        for number, lease in enumerate(leases):
            outcome = outcome_of(answer.items[number], done) if answer is not None else heard
            self._said(op, invoked, outcome, lease, **(details[number] if details is not None else {}))
