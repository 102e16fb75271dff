"""One schedule: A runs to a barrier in a session of its own, B runs to its end or waits for a lock, A goes on.

What came out is compared with the serial orders that real time allows, each obtained by running one after the other on the
same state at the same times. Time moves on by itself only while somebody waits, so an operation that read the clock before
its lock is told from one that read it after.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from tests.interleaving.operations import Target, plain
from tests.interleaving.raced import Operation
from tests.interleaving.scenes import Slot, set_scene
from tests.interleaving.stage import START, Stage, start

ACME_1, ACME_2, BRAVO_1, NEW_A, NEW_B = (str(UUID(int=number, version=4)) for number in (0x1, 0x2, 0x3, 0xA, 0xB))
SCOPES: Final = ("task", "tenant", "other")
BARRIERS: Final = {"commit": 1, "tenant": 1, "row": 1, "expiry": 60}
"""Where A stands while B runs, and by how many seconds time moves on while somebody waits: `commit` = it has written and
not committed; `tenant`, `row`, `expiry` = it waits for its tenants, for its tasks, for both past the end of every lease."""
_LOCKS = {
    "tenant": ("SELECT FROM tenure.tenant FOR UPDATE",),
    "row": ("SELECT FROM tenure.task_state FOR UPDATE",),
    "expiry": ("SELECT FROM tenure.tenant FOR UPDATE", "SELECT FROM tenure.task_state FOR UPDATE"),
}
Step = tuple[Operation, Target, datetime]
Outcome = tuple[dict[str, Any], dict[str, Any]]
"""The answer to each side, and every row of every table."""


@dataclass(frozen=True)
class Schedule:
    """Who races with whom, over what, from which state, at which barrier."""

    a: Operation
    b: Operation
    scope: str
    scene: str
    barrier: str

    def __str__(self) -> str:
        return f"{self.a.name}-{self.b.name}-{self.scope}-{self.scene}-{self.barrier}"

    @property
    def is_apart(self) -> bool:
        """Whether nobody holds anything that the other needs, so that there is nothing to pass over."""
        return self.scope == "other" and self.barrier == "commit"

    @property
    def slots(self) -> tuple[Slot, ...]:
        match self.scope:
            case "task":
                return (("acme", ACME_1, self.scene),)
            case "tenant":
                return (("acme", ACME_1, self.a.scenes[0]), ("acme", ACME_2, self.b.scenes[0]))
            case _:
                return (("acme", ACME_1, self.a.scenes[0]), ("bravo", BRAVO_1, self.b.scenes[0]))

    @property
    def room(self) -> dict[str, int]:
        """As much room in the tenants as makes the order of the two matter."""
        a, b = self.a, self.b
        outstanding = 1 if a.admits and b.admits else 0 if (a.admits and b.ends) or (a.ends and b.admits) else 5
        leased = 1 if a.takes and b.takes else 0 if (a.takes and b.frees) or (a.frees and b.takes) else 5
        return {"outstanding": 5, "leased": 5} if self.scope == "other" else {"outstanding": outstanding, "leased": leased}

    @property
    def targets(self) -> tuple[Target, Target]:
        slots = self.slots
        (tenant_a, task_a, _), (tenant_b, task_b, _) = slots[0], slots[-1]
        tenants = () if self.scope == "other" else ("acme",)
        forked = 2 if "checkpoint" in (self.a.name, self.b.name) else 1
        new_a = task_a if self.a.name == "create" and slots[0][2] in ("absent", "nobody") else NEW_A
        taken = self.scope == "task" and self.a.name == "create"
        new_b = task_b if self.b.name == "create" and slots[-1][2] in ("absent", "nobody") and not taken else NEW_B
        return (
            Target(side="a", tenant=tenant_a, task=task_a, new_task=new_a, tenants=tenants, forked=forked),
            Target(side="b", tenant=tenant_b, task=task_b, new_task=new_b, tenants=tenants, forked=forked),
        )


def schedules_of(a: Operation, b: Operation) -> Iterator[Schedule]:
    """All of a pair: over one task in each state that either has something to do in, and over two tasks."""
    for barrier in BARRIERS:
        for scene in dict.fromkeys((*a.scenes, *b.scenes)):
            yield Schedule(a, b, "task", scene, barrier)
        for scope in ("tenant", "other"):
            # A first pass takes, out of turn, from whom nobody holds: that is what it is for, and no serial order.
            if scope == "tenant" or {"first_pass", "set_policy"} != {a.name, b.name}:
                yield Schedule(a, b, scope, a.scenes[0], barrier)


@dataclass
class Runner:
    """Runs schedules on a stage, and remembers serial outcomes."""

    stage: Stage
    seen: "Counter[str]" = field(default_factory=Counter)
    serial: dict[tuple[object, ...], Outcome] = field(default_factory=dict)

    async def race(self, schedule: Schedule, *, seconds: int | None = None) -> tuple[Outcome, tuple[Step, Step]]:
        """Runs a schedule; `seconds` is by how much time moves on instead of what the barrier says."""
        await self.prepare(schedule)
        later = START + timedelta(seconds=BARRIERS[schedule.barrier] if seconds is None else seconds)
        race = self._race_at_commit if schedule.barrier == "commit" else self._race_behind_locks
        answers, time_a, time_b = await race(schedule, later)
        (a, b), state = schedule.targets, await self.stage.state()
        return (answers, state), ((schedule.a, a, time_a), (schedule.b, b, time_b))

    async def check(self, schedule: Schedule) -> None:
        """Runs a schedule; fails unless its outcome is that of a serial order."""
        outcome, steps = await self.race(schedule)
        self.seen[schedule.barrier] += 1
        if schedule.barrier != "commit" and all(now == START for _, _, now in steps):
            self.seen[f"{schedule.barrier}: nobody stood there"] += 1
            return
        answers, _ = outcome
        skipped = [] if schedule.is_apart else [step for step in steps if step[0].skips and not answers[step[1].side]]
        repeated, order = await self._come_again(outcome, steps, skipped) if skipped else (outcome, steps)
        allowed: list[Outcome] = []
        for serial in (steps, steps[::-1]):
            if serial[0][2] <= serial[1][2]:
                allowed.append(await self._run_serially(schedule, serial))
                if outcome == allowed[-1]:
                    return
        if skipped:
            self.seen[" and ".join(f"{step[0].name} skipped" for step in skipped)] += 1
            outcome, allowed = repeated, [await self._run_serially(schedule, order)]
        if outcome not in allowed:
            raise AssertionError(f"{schedule}: no serial order does this\n" + "\n".join(_differences(outcome, allowed)))

    def forget(self) -> None:
        """Forgets the serial outcomes, which only the schedules of one pair share."""
        self.serial.clear()

    async def _race_at_commit(self, schedule: Schedule, later: datetime) -> tuple[dict[str, Any], datetime, datetime]:
        stage, (a, b) = self.stage, schedule.targets
        transaction = stage.a.connection.transaction()
        await transaction.start()
        answer_a = await schedule.a.run(stage.a, a)
        running = start(schedule.b.run(stage.b, b))
        if waits := await stage.settled(running, stage.b):
            await stage.set_clock(later)
        await transaction.commit()
        return {"a": plain(answer_a), "b": plain(await running)}, START, later if waits else START

    async def _race_behind_locks(self, schedule: Schedule, later: datetime) -> tuple[dict[str, Any], datetime, datetime]:
        stage, (a, b) = self.stage, schedule.targets
        async with stage.other.connection.transaction():
            for lock in _LOCKS[schedule.barrier]:
                await stage.other.read(lock)
            running_a = start(schedule.a.run(stage.a, a))
            waits_a = await stage.settled(running_a, stage.a)
            running_b = start(schedule.b.run(stage.b, b))
            waits_b = await stage.settled(running_b, stage.b)
            if waits_a or waits_b:
                await stage.set_clock(later)
        answers = {"a": plain(await running_a), "b": plain(await running_b)}
        return answers, later if waits_a else START, later if waits_b else START

    async def _come_again(
        self, outcome: Outcome, steps: tuple[Step, ...], skipped: list[Step]
    ) -> tuple[Outcome, tuple[Step, ...]]:
        """What passed over something that others held looks again, now that nobody does: nothing may be lost."""
        answers, _ = outcome
        (now,) = (await self.stage.look.read("SELECT tenure.task_now()"))[0]
        for operation, target, _ in skipped:
            answers = {**answers, target.side: plain(await operation.run(self.stage.look, target))}
        first = [step for step in steps if step not in skipped]
        again = [(operation, target, now) for operation, target, _ in skipped]
        return (answers, await self.stage.state()), (*first, *again)

    async def _run_serially(self, schedule: Schedule, order: tuple[Step, ...]) -> Outcome:
        key = (schedule.slots, *((operation.name, target, now) for operation, target, now in order))
        if key not in self.serial:
            await self.prepare(schedule)
            answers = {}
            for operation, target, now in order:
                if now != START:
                    await self.stage.set_clock(now)
                answers[target.side] = plain(await operation.run(self.stage.look, target))
            state = await self.stage.state()
            assert state["audit"] == [], f"{schedule}: the audit finds {state['audit']}"
            self.serial[key] = answers, state
        return self.serial[key]

    async def prepare(self, schedule: Schedule) -> None:
        """Makes what there is before the schedule."""
        name = f"{schedule.slots} {schedule.room}"
        await set_scene(self.stage, name, schedule.slots, **schedule.room)


def _differences(outcome: Outcome, allowed: list[Outcome]) -> Iterator[str]:
    answers, state = outcome
    for number, (wanted_answers, wanted_state) in enumerate(allowed):
        for side in "ab":
            if answers[side] != wanted_answers[side]:
                yield f"  order {number}: {side} got {answers[side]}, not {wanted_answers[side]}"
        for table, rows in wanted_state.items():
            if state[table] != rows:
                got = [row for row in state[table] if row not in rows]
                yield f"  order {number}: {table} has {got}, not {[row for row in rows if row not in state[table]]}"
