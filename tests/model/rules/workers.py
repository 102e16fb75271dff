"""What workers say."""

from collections.abc import Callable
from typing import Any

from tests.model import arguments as some
from tests.model.choices import Choices, Draw, Fields, pick
from tests.model.operations import BATCHES


class Workers(Choices):
    """Leases and all that is done under them."""

    def lease(self, draw: Draw) -> None:
        self._say(draw, "lease_tasks", **self._claim(draw))

    def heartbeat(self, draw: Draw) -> None:
        self._say(draw, "heartbeat_task", lease=self._any_lease(draw), lease_ms=pick(draw, (0, draw(some.leases_ms))))

    def append(self, draw: Draw) -> None:
        self._say(draw, "append_checkpoint", **self._checkpoint(draw))

    def progress(self, draw: Draw) -> None:
        value = pick(draw, [0.0, 0.5, 1e300, -1.0])
        total = pick(draw, [None, 0.0, 2.5])
        message = pick(draw, ["", "half", "m" * 1024])
        self._say(draw, "report_progress", lease=self._any_lease(draw), value=value, total=total, message=message)

    def complete(self, draw: Draw) -> None:
        self._say(draw, "complete_task", **self._result(draw))

    def fail(self, draw: Draw) -> None:
        self.pair.throw(draw(some.dice))
        self._say(draw, "fail_task", **self._failure(draw))

    def release(self, draw: Draw) -> None:
        self._say(draw, "release_task", **self._release(draw))

    def confirm(self, draw: Draw) -> None:
        self._say(draw, "confirm_cancel", lease=self._ending_lease(draw))

    def suspend(self, draw: Draw) -> None:
        kind = pick(draw, ["timer", "signal", "input"])
        self._say(draw, "suspend_task", **self._suspension(draw, kind))

    def reserve(self, draw: Draw) -> None:
        """Mostly as the task's definition says each time, where it holds a reservation already."""
        lease = pick(draw, (self._reserving_lease, self._any_lease))(draw)
        held, limits = self._held(lease), draw(some.bounds)
        if held and pick(draw, (True, True, True, False)):
            limits = {name: amount + held.baseline[name] for name, amount in held.amount.items()}
        self._say(draw, "reserve_budget", lease=lease, limits=limits, usage=self._usage(draw, held))

    def settle(self, draw: Draw) -> None:
        lease = self._reserving_lease(draw)
        self._say(draw, "settle_budget", lease=lease, usage=self._usage(draw, self._held(lease)))

    def batch(self, draw: Draw) -> None:
        method = pick(draw, sorted(BATCHES))
        name = BATCHES[method].one
        make: dict[str, Callable[[Draw], Fields]] = {
            "create_task": self._new_task, "append_checkpoint": self._checkpoint, "complete_task": self._result,
            "fail_task": self._failure, "release_task": self._release,
            "heartbeat_task": lambda draw: {"lease": self._any_lease(draw), "lease_ms": 20_000},
            "get_task": lambda draw: dict(zip(("tenant_id", "task_id"), self._any_task(draw), strict=True)),
        }  # fmt: skip
        count = pick(draw, [2, 3, 4, 3, 2, 0])
        items: list[dict[str, Any]] = [self._perhaps_spoil(draw, name, make[name](draw)) for _ in range(count)]
        claim = self._perhaps_spoil(draw, "lease_tasks", self._claim(draw)) if method == "complete_and_lease_tasks" else None
        self.pair.say_batch(method, items, claim)
