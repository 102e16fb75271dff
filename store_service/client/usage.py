"""What a task may use, and what it has used: counted by its steps, saved with them, and known to a worker that takes over."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any, Final, TypedDict

import msgspec
from taskstore.v1 import types_pb2

from store_service.client.failures import FAILURE
from store_service.client.payloads import JSON

USED: Final = "application/vnd.tenure.used+json"
"""The media type of the checkpoint of a step that used something: `used`, and beside it the `value` or the `failure`."""

_MOST: Final = 10**15
_INNER: Final = {"value": JSON, "failure": FAILURE}
_COUNTED_BY: Final[ContextVar["Usage | None"]] = ContextVar("tenure_counted_by", default=None)


class Amounts(TypedDict, total=False):
    """Quantities in the dimensions of budgets."""

    tokens: int
    cost_micro_usd: int
    duration_us: int
    turns: int
    tool_calls: int
    delegations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAmounts:
    """A quantity in each of the six dimensions of budgets, 0 to 10**15; None where there is none.

    Tokens of language models, cost in millionths of a US dollar, time of work in microseconds, turns of a conversation,
    calls of tools, hand-overs to other agents.
    """

    tokens: int | None = None
    cost_micro_usd: int | None = None
    duration_us: int | None = None
    turns: int | None = None
    tool_calls: int | None = None
    delegations: int | None = None

    def __post_init__(self) -> None:
        for name, amount in asdict(self).items():
            if amount is not None and amount not in range(_MOST + 1):
                raise ValueError(f"{name} must be 0 to {_MOST}: {amount}")

    def given(self) -> dict[str, int]:
        """The dimensions in which there is a quantity."""
        return {name: amount for name, amount in asdict(self).items() if amount is not None}


class Usage:
    """What one task has used in its life, against what it may use. Counts from any thread."""

    def __init__(self, limits: BudgetAmounts | None, saved: Mapping[str, int], *, fail: Callable[[str], Exception]) -> None:
        self._limits = limits.given() if limits is not None else {}
        self._saved = Counter(saved)
        self._unsaved: Counter[str] = Counter()
        self._fail = fail
        self._lock = threading.Lock()

    @property
    def total(self) -> BudgetAmounts:
        """What was used, by steps that were not saved too."""
        with self._lock:
            used = self._saved + self._unsaved
        return BudgetAmounts(**{name: min(amount, _MOST) for name, amount in used.items()})

    @property
    def left(self) -> BudgetAmounts:
        """What may still be used, in the dimensions that have limits."""
        used = self.total.given()
        return BudgetAmounts(**{name: max(0, limit - used.get(name, 0)) for name, limit in self._limits.items()})

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Within this, and in what is begun in it, something may be used."""
        token = _COUNTED_BY.set(self)
        try:
            yield
        finally:
            _COUNTED_BY.reset(token)

    def add(self, amounts: Amounts) -> None:
        """Counts what a step used. Past a limit the task fails: raises the error that ends it."""
        if _COUNTED_BY.get() is not self:
            raise RuntimeError("count within the step that used it: a resumed run would count it again elsewhere")
        given = BudgetAmounts(**amounts).given()
        with self._lock:
            self._unsaved.update(given)
        self.check()

    def check(self) -> None:
        """Raises the error that ends the task where it has used more than it may."""
        used = self.total.given()
        over = [f"{used[name]} {name} of {limit}" for name, limit in self._limits.items() if used.get(name, 0) > limit]
        if over:
            raise self._fail(f"the task has used more than its limits allow: {', '.join(over)}")

    def to_save(self, payload: types_pb2.Payload) -> tuple[types_pb2.Payload, Mapping[str, int]]:
        """What came of a step as it is saved, and what it says was used; see `saved`."""
        kind = next((kind for kind, media_type in _INNER.items() if media_type == payload.media_type), None)
        with self._lock:
            used = dict(self._unsaved)
        if not used or kind is None:
            return payload, {}
        data = msgspec.json.encode({"used": used, kind: msgspec.Raw(payload.data)})
        return types_pb2.Payload(media_type=USED, data=data), used

    def saved(self, used: Mapping[str, int]) -> None:
        """This was saved."""
        with self._lock:
            self._saved.update(used)
            self._unsaved.subtract(used)
            self._unsaved += Counter()  # without the noughts


def read_saved(checkpoints: Sequence[types_pb2.Checkpoint]) -> Mapping[str, int]:
    """What a task's checkpoints say was used."""
    total: Counter[str] = Counter()
    for checkpoint in checkpoints:
        if checkpoint.payload.media_type == USED:
            total.update(msgspec.json.decode(checkpoint.payload.data)["used"])
    return total


def without_usage(payload: types_pb2.Payload) -> types_pb2.Payload:
    """What came of a step, without what it used."""
    if payload.media_type != USED:
        return payload
    told: dict[str, Any] = msgspec.json.decode(payload.data, type=dict[str, msgspec.Raw])
    kind = "failure" if "failure" in told else "value"
    return types_pb2.Payload(media_type=_INNER[kind], data=bytes(told[kind]))
