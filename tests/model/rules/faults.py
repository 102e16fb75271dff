"""What nobody says: time, lost answers, lost workers, lost stores."""

from hypothesis import strategies as st

from tests.model import arguments as some
from tests.model.choices import Choices, Draw, pick
from tests.model.contract.checks import MS
from tests.model.contract.rows import Lease

SECOND = 1_000 * MS


class Faults(Choices):
    """Time and what goes wrong."""

    def advance(self, draw: Draw) -> None:
        """To just before, just at, or just past something that falls due, and then perhaps to what is concerned by it."""
        now = self.model.now
        due = sorted((at, key) for key, task in self.model.tasks.items() for at in task.instants if at > now)[:4]
        if not due or pick(draw, [False, False, False, True]):
            return self.pair.advance(pick(draw, [MS, SECOND]))
        at, key = pick(draw, due)
        self.pair.advance(max(1, at - now + pick(draw, [0, 0, 1, -1, MS])))
        return self._late(draw, key)

    def _late(self, draw: Draw, key: tuple[str, str]) -> None:
        """Whoever has to do with the task acts at this very moment."""
        task, wait = self.model.tasks[key], self.model.tasks[key].wait
        if task.state == "LEASED":
            lease = Lease(*key, task.worker_id, task.token, self.model.epoch)
            match pick(draw, ["heartbeat", "append", "complete", "release", "settle", "nothing", "nothing"]):
                case "heartbeat":
                    self.pair.say("heartbeat_task", lease=lease, lease_ms=10_000)
                case "append":
                    self.pair.say("append_checkpoint", lease=lease, revision=len(task.checkpoints), step="late", data=b"1")
                case "complete":
                    self.pair.say("complete_task", lease=lease, data=b"1")
                case "release":
                    self.pair.say("release_task", lease=lease, delay_ms=0)
                case "settle":
                    self.pair.say("settle_budget", lease=lease, usage={})
        elif task.state == "WAITING" and wait and pick(draw, (True, False)):
            ref = {"tenant_id": key[0], "task_id": key[1]}
            if wait.signal_name:
                self.pair.say("publish_signal", **ref, signal_id=self._new_id(), name=wait.signal_name, data=b"1")
            elif wait.kind == "INPUT":
                self.pair.say(
                    "answer_inputs", **ref, answers=tuple((one.key, b"1") for one in task.questions if one.state == "OPEN")
                )

    def bring_along(self, draw: Draw) -> None:
        self.pair.say("lease_tasks", request_id="c", worker_id="nobody", workflows=(("none", 1),), limit=1, lease_ms=1_000)

    def repeat(self, draw: Draw) -> None:
        """The answer was lost on the way to the caller, who says the same again."""
        back = draw(st.integers(1, 6))
        said = [(name, fields) for name, fields in self.pair.said if " " not in name and "items" not in fields]
        said = [(name, fields) for name, fields in said if fields.keys() & {"lease", "tenant_id", "worker_id"}]
        if len(said) >= back:
            name, fields = said[-back]
            self.pair.say(name, **fields)

    def take_over(self, draw: Draw) -> None:
        """A lease runs out, and another worker takes the task and goes on with it, or the first one does."""
        lost = pick(draw, (self._reserving_lease, self._any_lease))(draw)
        task = self.model.holder(lost)
        if task is None:
            return
        self.pair.advance((task.expires_at or 0) - self.model.now + pick(draw, (0, 0, 1, SECOND)))
        worker_id = draw(some.workers)
        claim = {"workflows": (task.lane,), "tenant_ids": (lost.tenant_id,), "limit": 25, "lease_ms": 10_000}
        self.pair.say("lease_tasks", request_id=self._new_id(), worker_id=worker_id, **claim)
        lease, held = Lease(*task.key, worker_id, task.token, self.model.epoch), task.holds
        match pick(draw, ("reserve", "settle", "old", "complete")):
            case "reserve" if held:
                limits = {name: amount + held.baseline[name] for name, amount in held.amount.items()}
                self.pair.say("reserve_budget", lease=lease, limits=limits, usage=self._usage(draw, held))
            case "settle":
                self.pair.say("settle_budget", lease=lease, usage=self._usage(draw, held))
            case "old":
                self.pair.say("complete_task", lease=lost, data=b"1")
            case _:
                self.pair.say("complete_task", lease=lease, data=b"1")

    def wish(self, draw: Draw) -> None:
        """A task's end is wished for while a worker has it, who ends it in another way or is lost."""
        lease = self._any_lease(draw)
        task = self.model.holder(lease)
        if task is None:
            return
        self.pair.say("cancel_task", tenant_id=lease.tenant_id, task_id=lease.task_id, mode=1)
        match pick(draw, ("lost", "fail", "release", "suspend", "complete", "confirm", "nothing")):
            case "lost":
                self.pair.advance((task.expires_at or 0) - self.model.now)
                self.bring_along(draw)
            case "fail":
                self.pair.say("fail_task", lease=lease, message="it broke", retry=(10, 1, 1))
            case "release":
                self.pair.say("release_task", lease=lease, delay_ms=0)
            case "suspend":
                self.pair.say("suspend_task", lease=lease, step="wait", timer_ms=1)
            case "complete":
                self.pair.say("complete_task", lease=lease, data=b"1")
            case "confirm":
                self.pair.say("confirm_cancel", lease=lease)

    def lose_workers(self, draw: Draw) -> None:
        """One worker after the other takes work and is never heard of again, or is for a moment."""
        times = draw(st.integers(1, 12))
        lived = pick(draw, (True, False))
        claim = {"workflows": (draw(some.lanes),), "limit": 1, "lease_ms": 1_000}
        for _ in range(times if not lived else min(times, 4)):
            answer = self.pair.say("lease_tasks", request_id=self._new_id(), worker_id="w1", **claim)
            if lived and "tasks" in answer:
                self.pair.say("heartbeat_task", lease=self.pair.granted[-1], lease_ms=1_000)
            self.pair.advance(SECOND)

    def restore(self, draw: Draw) -> None:
        """A database is seldom restored."""
        if draw(st.integers(0, 3)) == 3:
            self.pair.bump_epoch()

    def cut(self, draw: Draw) -> None:
        self.pair.cut()

    def crash(self, draw: Draw) -> None:
        self.pair.crash()
