"""The machine: it makes up what is said to a store and to the model of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model import arguments as some
from tests.model.choices import Draw, pick
from tests.model.contract.checks import DAY_MS
from tests.model.coverage import Seen
from tests.model.pair import Pair
from tests.model.real import Real
from tests.model.rules.callers import Callers
from tests.model.rules.faults import Faults
from tests.model.rules.operators import Operators
from tests.model.rules.workers import Workers

WEIGHTS: Final = {
    "lease": 7, "advance": 4, "suspend": 4, "publish": 4, "reserve": 4, "append": 3, "answer": 3, "repeat": 3, "batch": 3,
    "bring_along": 3, "heartbeat": 3, "cancel": 3, "create": 3, "read": 3, "take_over": 3, "complete": 2, "fail": 2,
    "release": 2, "fork": 2, "settle": 2, "watch": 2, "redrive": 2, "wish": 2, "list": 1, "progress": 1, "confirm": 1,
    "attach": 1, "set_policy": 1, "set_budget": 1, "remove_budget": 1, "forget_facts": 1, "pause": 1, "resume": 1, "remove": 2,
    "clean": 2, "hold": 1, "end_hold": 1, "look_at_what_is_over": 1, "export": 1, "purge": 3,
    "compact": 1, "lose_workers": 1, "restore": 1, "cut": 1, "crash": 1,
}  # fmt: skip
STEPS: Final = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


@st.composite
def begun(draw: Draw) -> None:
    """How an example begins. What a machine says, it says while its arguments are drawn: a draw in the body of a rule, from
    `st.data()`, takes four times as long, and there are ten in a step."""
    machine: StoreMachine = draw(st.runner())
    with machine.noting():
        machine.start(draw)


@st.composite
def done(draw: Draw) -> None:
    """How it goes on."""
    machine: StoreMachine = draw(st.runner())
    with machine.noting():
        getattr(machine, pick(draw, STEPS))(draw)


class StoreMachine(RuleBasedStateMachine, Callers, Workers, Operators, Faults):
    """Every operation, with arguments that fit, that just fit, and that do not."""

    def __init__(self, real: Real, seen: Seen, told: "list[StoreMachine]") -> None:
        super().__init__()
        told.append(self)
        self.fault: Exception | None = None
        """What went wrong, whatever Hypothesis makes of it."""
        self.pair = Pair(real, seen)
        self.model = self.pair.model

    def teardown(self) -> None:
        """What has not been looked at for a while is as it should be."""
        if self.pair.agreed:
            with self.noting():
                self.pair.look_everywhere()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keeps what goes wrong inside."""
        try:
            yield
        except HypothesisException:
            raise
        except Exception as fault:
            self.fault = fault
            raise

    @initialize(_=begun())
    def begin(self, _: None) -> None:
        """Some tasks, and what tenants may use."""

    @rule(_=done())
    def step(self, _: None) -> None:
        """One rule alone, so that the weights are ours: work that is begun, waits and time meet often."""

    def start(self, draw: Draw) -> None:
        most, leased, count = *draw(some.policies), draw(st.integers(2, 6))
        if most > count:
            for tenant_id in some.TENANTS:
                fields = {"max_outstanding": most, "max_leased": leased, "retention_ms": DAY_MS}
                self.pair.say("set_tenant_policy", tenant_id=tenant_id, **fields)
        if pick(draw, (False, True)):
            for tenant_id in some.TENANTS:
                self.pair.say(
                    "set_budget_policy", tenant_id=tenant_id, limits=draw(some.budgets),
                    window_ms=draw(some.windows_ms), recovery_ms=draw(some.recoveries_ms),
                )  # fmt: skip
        for _ in range(count):
            self.create(draw)
