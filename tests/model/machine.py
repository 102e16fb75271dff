"""The machine: it makes up what is said to a store and to the model of it."""

from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model import arguments as some
from tests.model.checks import DAY_MS, MS
from tests.model.choices import Choices, Data
from tests.model.pair import BATCHES, Pair
from tests.model.real import Real
from tests.model.rows import TERMINAL, Lease

SECOND: Final = 1_000 * MS
WEIGHTS: Final = {
    "lease": 7, "advance": 4, "suspend": 4, "publish": 4, "create": 3, "append": 3, "answer": 3, "repeat": 3, "batch": 3,
    "bring_along": 3, "heartbeat": 3, "complete": 2, "fail": 2, "release": 2, "cancel": 3, "read": 2, "fork": 2, "progress": 1,
    "confirm": 1, "attach": 1, "set_policy": 1, "remove": 1, "compact": 1, "lose_workers": 1, "restore": 1,
}  # fmt: skip
STEPS: Final = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


class StoreMachine(RuleBasedStateMachine, Choices):
    """Every operation, with arguments that fit, that just fit, and that do not."""

    def __init__(self, real: Real) -> None:
        super().__init__()
        self.pair = Pair(real)
        self.model = self.pair.model

    def teardown(self) -> None:
        """What has not been looked at for a while is as it should be."""
        if self.pair.agreed:
            self.pair.look(everywhere=True)

    @initialize(data=st.data(), policy=some.policies, count=st.integers(2, 6))
    def begin(self, data: Data, policy: tuple[int, int], count: int) -> None:
        if policy[0] > count:
            for tenant_id in some.TENANTS:
                self._set_policy(tenant_id, policy, DAY_MS)
        for _ in range(count):
            self._say(data, "create_task", **self._new_task(data))

    @rule(data=st.data())
    def step(self, data: Data) -> None:
        """One rule alone, so that the weights are ours: work that is begun, waits and time meet often."""
        getattr(self, data.draw(st.sampled_from(STEPS)))(data)

    def create(self, data: Data) -> None:
        self._say(data, "create_task", **self._new_task(data))

    def fork(self, data: Data) -> None:
        far = [key for key, task in self.model.tasks.items() if task.checkpoints][-2:]
        tenant_id, task_id = data.draw(st.sampled_from([*far, self._any_task(data)]))
        has = len(self.model.tasks[tenant_id, task_id].checkpoints) if (tenant_id, task_id) in self.model.tasks else 0
        request_id = data.draw(st.sampled_from([self._new_id(), self._new_id(), data.draw(some.request_ids)]))
        self._say(
            data, "fork_task", tenant_id=tenant_id, request_id=request_id, source_task_id=task_id,
            checkpoints=data.draw(st.integers(0, has + 1)), **self._owner(data, tenant_id, task_id),
        )  # fmt: skip

    def lease(self, data: Data) -> None:
        self._say(data, "lease_tasks", **self._claim(data))

    def heartbeat(self, data: Data) -> None:
        self._say(data, "heartbeat_task", lease=self._any_lease(data), lease_ms=data.draw(some.leases_ms))

    def append(self, data: Data) -> None:
        self._say(data, "append_checkpoint", **self._checkpoint(data))

    def progress(self, data: Data) -> None:
        value = data.draw(st.sampled_from([0.0, 0.5, 1e300, -1.0]))
        total = data.draw(st.sampled_from([None, 0.0, 2.5]))
        message = data.draw(st.sampled_from(["", "half", "halfway " * 3]))
        self._say(data, "report_progress", lease=self._any_lease(data), value=value, total=total, message=message)

    def complete(self, data: Data) -> None:
        self._say(data, "complete_task", **self._result(data))

    def fail(self, data: Data) -> None:
        dice = data.draw(some.dice)
        self.pair.throw(dice)
        self._say(data, "fail_task", **self._failure(data))

    def release(self, data: Data) -> None:
        self._say(data, "release_task", lease=self._any_lease(data), delay_ms=data.draw(some.delays_ms))

    def confirm(self, data: Data) -> None:
        self._say(data, "confirm_cancel", lease=self._any_lease(data))

    def suspend(self, data: Data) -> None:
        self._suspend(data, data.draw(st.sampled_from(["timer", "signal", "input"])))

    def publish(self, data: Data) -> None:
        tenant_id, task_id = self._waiting_task(data, "signal")
        task = self.model.tasks.get((tenant_id, task_id))
        wanted = task.wait.signal_name if task and task.wait and task.wait.signal_name else some.NAMES[0]
        self._say(
            data, "publish_signal", tenant_id=tenant_id, task_id=task_id, data=data.draw(some.payloads),
            signal_id=data.draw(st.one_of(some.signal_ids, st.just(self._new_id()))),
            name=data.draw(st.sampled_from([wanted, wanted, *some.NAMES])), **self._owner(data, tenant_id, task_id),
        )  # fmt: skip

    def answer(self, data: Data) -> None:
        tenant_id, task_id = self._waiting_task(data, "input")
        task = self.model.tasks.get((tenant_id, task_id))
        open_ = [one.key for one in task.questions if one.state == "OPEN"] if task else []
        every = st.fixed_dictionaries(dict.fromkeys(open_ or ["a"], some.payloads))
        given = data.draw(data.draw(st.sampled_from([some.answers, every, every])))
        self._say(data, "answer_inputs", tenant_id=tenant_id, task_id=task_id, answers=given)

    def cancel(self, data: Data) -> None:
        mode = data.draw(st.sampled_from([0, 1, 1, 2]))
        tenant_id, task_id = self._any_task(data)
        owner = self._owner(data, tenant_id, task_id)
        self._say(data, "cancel_task", tenant_id=tenant_id, task_id=task_id, mode=mode, **owner)

    def attach(self, data: Data) -> None:
        abandon_ms = data.draw(some.deadlines_ms)
        tenant_id, task_id = self._any_task(data)
        owner = self._owner(data, tenant_id, task_id)
        self._say(data, "attach_task", tenant_id=tenant_id, task_id=task_id, abandon_ms=abandon_ms, **owner)

    def read(self, data: Data) -> None:
        view = data.draw(st.integers(0, 3))
        revision = data.draw(st.integers(0, 3))
        tenant_id, task_id = self._any_task(data)
        named = {"tenant_id": tenant_id, "task_id": task_id}
        match data.draw(
            st.sampled_from(["task", "checkpoint", "tombstone", "signal", "tenant", "input", "checkpoints", "list"])
        ):
            case "task":
                self._say(data, "get_task", **named, view=view, **self._owner(data, tenant_id, task_id))
            case "checkpoint":
                self._say(data, "get_checkpoint", **named, revision=revision)
            case "tombstone":
                self._say(data, "get_tombstone", **named)
            case "signal":
                self._say(data, "get_signal", tenant_id=tenant_id, signal_id=data.draw(some.signal_ids))
            case "tenant":
                self._say(data, "get_tenant", tenant_id=data.draw(st.sampled_from((*some.TENANTS, "nobody"))))
            case "input":
                self._say(data, "load_input", lease=self._any_lease(data))
            case "checkpoints":
                self._say(data, "load_checkpoints", lease=self._any_lease(data), from_revision=revision)
            case _:
                states = data.draw(st.sets(st.sampled_from(["QUEUED", "LEASED", "WAITING", "COMPLETED"]), max_size=2))
                self._say(data, "list_tasks", tenant_id=tenant_id, states=sorted(states), workflow="report")

    def advance(self, data: Data) -> None:
        """To just before, just at, or just past something that falls due, and then perhaps to what is concerned by it."""
        now = self.model.now
        due = sorted((at, key) for key, task in self.model.tasks.items() for at in task.instants if at > now)[:4]
        if not due or data.draw(st.sampled_from([False, False, False, True])):
            return self.pair.advance(data.draw(st.sampled_from([MS, SECOND])))
        at, key = data.draw(st.sampled_from(due))
        self.pair.advance(max(1, at - now + data.draw(st.sampled_from([0, 0, 1, -1, MS]))))
        task, wait = self.model.tasks[key], self.model.tasks[key].wait
        if task.state == "LEASED":
            lease = Lease(*key, task.worker_id, task.token, self.model.epoch)
            match data.draw(st.sampled_from(["heartbeat", "append", "complete", "release", "nothing", "nothing"])):
                case "heartbeat":
                    self.pair.say("heartbeat_task", lease=lease, lease_ms=10_000)
                case "append":
                    self.pair.say("append_checkpoint", lease=lease, revision=len(task.checkpoints), step="late", data=b"1")
                case "complete":
                    self.pair.say("complete_task", lease=lease, data=b"1")
                case "release":
                    self.pair.say("release_task", lease=lease, delay_ms=0)
        elif task.state == "WAITING" and wait and data.draw(st.booleans()):
            ref = {"tenant_id": key[0], "task_id": key[1]}
            if wait.signal_name:
                self.pair.say("publish_signal", **ref, signal_id=self._new_id(), name=wait.signal_name, data=b"1")
            elif wait.kind == "INPUT":
                self.pair.say("answer_inputs", **ref, answers={one.key: b"1" for one in task.questions if one.state == "OPEN"})
        return None

    def bring_along(self, data: Data) -> None:
        self.pair.say("lease_tasks", request_id="c", worker_id="nobody", workflows=(("none", 1),), limit=1, lease_ms=1_000)

    def set_policy(self, data: Data) -> None:
        tenant_id = data.draw(some.tenants)
        policy = data.draw(some.policies)
        retention_ms = data.draw(some.retentions_ms)
        self._say(
            data, "set_tenant_policy", tenant_id=tenant_id, max_outstanding=policy[0], max_leased=policy[1],
            retention_ms=retention_ms, max_input_bytes=data.draw(some.input_bytes),
            max_creates_per_second=data.draw(some.rates),
        )  # fmt: skip

    def remove(self, data: Data) -> None:
        tenant_id = data.draw(some.tenants)
        limit = data.draw(st.sampled_from([0, 1, 1_000]))
        days = data.draw(st.sampled_from([0, 2]))
        if days and any(task.state in TERMINAL for task in self.model.tasks.values()):
            self.pair.advance(days * DAY_MS * MS)
        self._say(data, "remove_tasks", tenant_id=tenant_id, limit=limit)

    def compact(self, data: Data) -> None:
        tenant_id = data.draw(some.tenants)
        older_than_ms = data.draw(st.sampled_from([1, 5_000]))
        self._say(data, "compact_signals", tenant_id=tenant_id, older_than_ms=older_than_ms)
        self.pair.look(everywhere=True)

    def repeat(self, data: Data) -> None:
        """The answer was lost: the same is said again."""
        back = data.draw(st.integers(1, 6))
        said = [(name, fields) for name, fields in self.pair.said if fields.keys() & {"lease", "tenant_id", "tenant_ids"}]
        if len(said) >= back:
            name, fields = said[-back]
            self.pair.say(name, **fields)

    def batch(self, data: Data) -> None:
        name = data.draw(st.sampled_from(sorted(BATCHES)))
        count = data.draw(st.integers(2, 4))
        leases = data.draw(st.booleans())
        make: dict[str, Callable[[Data], dict[str, Any]]] = {
            "create_task": self._new_task, "append_checkpoint": self._checkpoint, "complete_task": self._result,
            "fail_task": self._failure, "heartbeat_task": lambda data: {"lease": self._any_lease(data), "lease_ms": 20_000},
            "get_task": lambda data: dict(zip(("tenant_id", "task_id"), self._any_task(data), strict=True)),
        }  # fmt: skip
        items = [self._spoil(data, name, make[name](data)) for _ in range(count)]
        self.pair.say_batch(name, items, self._claim(data) if name == "complete_task" and leases else None)

    def lose_workers(self, data: Data) -> None:
        """One worker after the other takes work and is never heard of again, or is for a moment."""
        times = data.draw(st.integers(1, 12))
        lived = data.draw(st.booleans())
        claim = {"workflows": (data.draw(some.lanes),), "limit": 1, "lease_ms": 1_000}
        for _ in range(times if not lived else min(times, 4)):
            answer = self.pair.say("lease_tasks", request_id=self._new_id(), worker_id="w1", **claim)
            if lived and "tasks" in answer:
                self.pair.say("heartbeat_task", lease=self.pair.granted[-1], lease_ms=1_000)
            self.pair.advance(SECOND)

    def restore(self, data: Data) -> None:
        sure = data.draw(st.integers(0, 3))
        if sure == 3:
            self.pair.bump_epoch()
