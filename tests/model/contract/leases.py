"""What workers do: take work, keep it, save its steps, end it. Source: store contract, sections 5, 6, 7."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from tests.model.contract.checks import (
    DAY_MS,
    INT31,
    JSON,
    KIB,
    MIB,
    MS,
    Answer,
    Refused,
    check,
    check_choice,
    is_name,
    is_payload,
    is_text,
    lean,
    page,
    payload,
)  # fmt: skip # isort: skip
from tests.model.contract.rows import Lease, Task
from tests.model.contract.state import State

QUANTUM: Final = 10
"""How many tasks of one tenant a claim takes at most before it looks at the next tenant."""


class Leases(State):
    """Claims and all that is done under a lease."""

    def lease_tasks(
        self, *, request_id: str, worker_id: str, workflows: Sequence[tuple[str, int]], limit: int, lease_ms: int,
        own_ms: int = 0, tenant_ids: Sequence[str] = (), wait_ms: int = 0, served: Sequence[str] = (),
        forfeited: Sequence[str] = (), left_out: Sequence[str] = (),
    ) -> Answer:  # fmt: skip
        """What is ready; when nothing is, what has fallen due by now. What does not fit into the answer is left out of it.
        The first workflow's leases last for `own_ms`, where it says so."""
        check(is_text(request_id, 128) and is_name(worker_id) and 1 <= len(workflows) <= 500 and 1 <= limit <= 500)
        check(all(is_text(name, 256) and 1 <= version < 2**31 for name, version in workflows) and len(tenant_ids) <= 1_000)
        check(
            all(1_000 <= ms <= 900_000 for ms in (lease_ms, own_ms or lease_ms))
            and 0 <= wait_ms <= 60_000
            and all(map(is_name, tenant_ids))
        )
        lengths = dict.fromkeys(workflows, lease_ms) | {workflows[0]: own_ms or lease_ms}
        check(workflows[0] not in workflows[1:] or lengths[workflows[0]] == lease_ms)
        arguments = (request_id, worker_id, lengths, limit, tenant_ids, served)
        found = self._claim(*arguments)
        if not found:
            self._promote_due(forfeited)
            found = self._claim(*arguments)
        sizes = {task.task_id: self._size(task) for task in found}
        room = self.limits.answer_bytes - sum(task.contract_bytes for task in found)
        check_choice(sum(size for task_id, size in sizes.items() if task_id not in left_out) <= room)
        check_choice(not left_out or sum(sizes.values()) > room)
        answers = [task.leased_shown(self._lease(task), self.signals) for task in found]
        for answer in answers:
            if answer["lease"]["task_id"] in left_out:
                answer["input_left_out"] = True
                for name in ("input", "wake"):
                    answer.pop(name, None)
        return lean(tasks=answers)

    def heartbeat_task(self, *, lease: Lease, lease_ms: int) -> Answer:
        """Extends a lease, by 0 as long as it was granted for, and never shortens it. An expired one stays expired."""
        check(lease_ms == 0 or 1_000 <= lease_ms <= 900_000)
        task = self._held(lease)
        task.lived = True
        task.expires_at = max(task.expires_at or 0, self.now + (lease_ms or task.lease_ms) * MS)
        self.touched.add(task.key)
        return lean(expires_at=task.expires_at, cancel_requested=task.wished)

    def report_progress(self, *, lease: Lease, value: float, total: float | None = None, message: str = "") -> Answer:
        """Numbered from 1."""
        check(all(abs(one) < float("inf") for one in (value, total or 0.0)) and is_text(message, KIB, blank=True))
        task = self._held(lease)
        task.lived = True
        report = lean(sequence=len(task.reports) + 1, value=value, message=message)
        task.reports.append(report if total is None else report | {"total": total})
        self._changed(task)
        return {"sequence": len(task.reports)}

    def load_input(self, *, lease: Lease) -> Answer:
        """The input and the wake, under the lease."""
        task = self._held(lease)
        return {"input": task.input} | lean(wake=task.wake_shown(self.signals))

    def load_early_answers(self, *, lease: Lease) -> Answer:
        """Those that have not met their questions."""
        early = self._held(lease).early
        return lean(answers=[{"key": key, "response": payload("", early[key])} for key in sorted(early)])

    def load_checkpoints(self, *, lease: Lease, from_revision: int = 0, page_size: int = 0) -> Answer:
        """The steps that are done, under the lease."""
        check(from_revision in INT31 and 0 <= page_size <= 256)
        return lean(checkpoints=page(self._held(lease).checkpoints[from_revision:], page_size))

    def watch_leases(self, *, worker_id: str) -> Answer:
        """At once, and then whenever the worker should look: it says nothing else."""
        check(is_name(worker_id))
        return {}

    def append_checkpoint(self, *, lease: Lease, revision: int, step: str, data: bytes, media_type: str = "") -> Answer:
        """Only as the next revision."""
        check(revision in INT31 and is_text(step, 256) and is_payload(media_type, data, 4 * MIB))
        task = self._held(lease)
        if revision != len(task.checkpoints):
            raise Refused("REVISION_CONFLICT")
        kept = sum(len(one["payload"].get("data", b"")) for one in task.checkpoints)
        if revision >= self.limits.checkpoints or kept + len(data) > self.limits.checkpoint_bytes:
            raise Refused("CHECKPOINT_LIMIT")
        task.lived = True
        saved = lean(revision=revision, step=step, payload=payload(media_type, data), token=lease.token, created_at=self.now)
        task.checkpoints.append(saved)
        self.touched.add(task.key)
        return {}

    def complete_task(self, *, lease: Lease, data: bytes, media_type: str = "") -> Answer:
        """Ends a task with its result."""
        check(is_payload(media_type, data, 4 * MIB))
        result = payload(media_type, data)
        content = ("complete", result)
        if task := self._finishing(lease, content):
            self._finished(task, lease, content)
            task.outcome = {"result": result}
            self._end(task, "COMPLETED", worker=lease.worker_id)
        return {}

    def fail_task(
        self, *, lease: Lease, message: str, code: int = -32000, data: bytes | None = None, media_type: str = "",
        retry: tuple[int, int, int] | None = None, chosen: int = 0,
    ) -> Answer:  # fmt: skip
        """Ends a task with an error, or lets it rest for a random time below a bound that doubles with each retry."""
        check(is_text(message, KIB) and (data is None or is_payload(media_type, data, 64 * KIB)))
        check((data is None or media_type in ("", JSON)) and -(2**31) <= code < 2**31)
        check(retry is None or (retry[0] >= 1 and 1 <= retry[1] <= retry[2] <= DAY_MS))
        content = ("fail", message, code, data, retry)
        task = self._finishing(lease, content)
        if task is None:
            known = self.tasks[lease.tenant_id, lease.task_id]
            return lean(retry_at=known.ready_at if known.state == "QUEUED" else None)
        self._finished(task, lease, content)
        if retry is None or task.retries + 1 >= retry[0]:
            error = lean(code=code, message=message, data=None if data is None else payload("", data), reason="WORKER")
            task.outcome = {"error": error}
            self._end(task, "FAILED", worker=lease.worker_id, detail=message)
        elif task.wished:
            self._end(task, "CANCELLED", worker=lease.worker_id, detail=message)
        else:
            most_ms = min(retry[2], retry[1] * 2**task.retries)
            check_choice(self.now <= chosen <= self.now + most_ms * MS)
            task.retries += 1
            self._requeue(task, chosen)
            self._tell(task, "RETRIED", lease.worker_id, detail=message)
            return {"retry_at": chosen}
        return {}

    def release_task(self, *, lease: Lease, delay_ms: int) -> Answer:
        """Gives a task back; one whose end is wished for ends."""
        check(0 <= delay_ms <= DAY_MS)
        content = ("release", delay_ms)
        if task := self._finishing(lease, content):
            self._finished(task, lease, content)
            if task.wished:
                self._end(task, "CANCELLED", worker=lease.worker_id)
            else:
                self._requeue(task, self.now + delay_ms * MS)
                self._tell(task, "RELEASED", lease.worker_id)
        return {}

    def confirm_cancel(self, *, lease: Lease) -> Answer:
        """The work was stopped."""
        if task := self._finishing(lease, "confirm"):
            self._finished(task, lease, "confirm")
            self._end(task, "CANCELLED", worker=lease.worker_id)
        return {}

    def _claim(
        self, request_id: str, worker_id: str, lengths: Mapping[tuple[str, int], int], limit: int,
        tenant_ids: Sequence[str], served: Sequence[str],
    ) -> list[Task]:  # fmt: skip
        if worker_id in self.claims and self.claims[worker_id][0] == request_id:
            held = [task for lease in self.claims[worker_id][1] if (task := self.holder(lease, any_epoch=True))]
            for task in held:
                task.expires_at = max(task.expires_at or 0, self.now + task.lease_ms * MS)
                self.touched.add(task.key)
            return held
        ready = [
            task
            for task in self.tasks.values()
            if task.ready and task.lane in lengths and not self.tenants[task.tenant_id].is_paused(task.lane)
        ]
        turns = sorted(
            (self.tenants[name].turn, name)
            for name in {task.tenant_id for task in ready}
            if (not tenant_ids or name in tenant_ids) and self._room(name) > 0
        )[: -(-limit // min(limit, QUANTUM))]
        picks: list[tuple[int, int, str, Task]] = []
        for turn, name in turns:
            share = min(max(min(limit, QUANTUM), 1 + (limit - 1) // len(turns)), self._room(name))
            order = sorted((-task.priority, task.ready_at, UUID(task.task_id)) for task in ready if task.tenant_id == name)
            picks += [(n, turn, name, self.tasks[name, str(id_)]) for n, (_, _, id_) in enumerate(order[:share])]
        taken = [task for _, _, _, task in sorted(picks, key=lambda pick: pick[:3])[:limit]]
        for task in taken:
            task.state, task.ready, task.worker_id, task.lease_ms = "LEASED", False, worker_id, lengths[task.lane]
            task.expires_at = self.now + task.lease_ms * MS
            task.token, task.attempts, task.lived, task.finished = task.token + 1, task.attempts + 1, False, None
            self._tell(task, "LEASED", worker_id)
        tenants = list(dict.fromkeys(task.tenant_id for task in taken))
        if len(tenants) > 1:
            check_choice(set(served) == set(tenants))
        for name in served if len(tenants) > 1 else tenants:
            self.turn += 1
            self.tenants[name].turn = self.turn
        if taken:
            self.claims[worker_id] = request_id, [self._lease(task) for task in taken]
        return taken

    def _room(self, tenant_id: str) -> int:
        return self.tenants[tenant_id].max_leased - sum(task.state == "LEASED" for task in self.tasks_of(tenant_id))

    def _size(self, task: Task) -> int:
        """The bytes of its input and of what came with its wake."""
        wake = task.wake_shown(self.signals) or {}
        came = [one["response"] for one in wake.get("input", {}).get("answers", [])] + [
            wake.get("signal", {}).get("payload", {})
        ]
        return sum(len(one.get("data", b"")) for one in [task.input, *came])
