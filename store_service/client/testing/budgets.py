"""A tenant's budget as a model: what is committed of it, and what its tasks hold."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from store_service.client.usage import BudgetAmounts


class Refused(Exception):  # noqa: N818 (reads as what happened)
    """An operation refused for this reason."""


@dataclass
class Held:
    """A reservation: the use up to which all is committed, and what is held from there on."""

    baseline: Mapping[str, int]
    amount: dict[str, int]


class MemoryBudget:
    """The budget of the one tenant that there is, without windows and without a time for takeovers."""

    def __init__(self, limits: BudgetAmounts) -> None:
        self.limits = limits.given()
        self.committed: Counter[str] = Counter()
        self.held: dict[str, Held] = {}

    def reserve(self, task_id: str, limits: Mapping[str, int], used: Mapping[str, int]) -> bool:
        """Holds what lies between; says whether the task held a reservation already. Raises Refused."""
        if self.limits.keys() - limits.keys():
            raise Refused("INVALID_INPUT")
        if (held := self.held.get(task_id)) is not None:
            since = self._since(held, used)
            if any(limits[name] - held.baseline.get(name, 0) != amount for name, amount in held.amount.items()):
                raise Refused("BUDGET_CONFLICT")
            self._charge(task_id, since)
            amount = {name: left - since[name] for name, left in held.amount.items()}
            self.held[task_id] = Held(used, amount)
            return True
        amount = {name: limits[name] - used.get(name, 0) for name in self.limits}
        if any(left < 0 for left in amount.values()):
            raise Refused("BUDGET_CONFLICT")
        for name, limit in self.limits.items():
            if self.committed[name] + sum(other.amount[name] for other in self.held.values()) + amount[name] > limit:
                raise Refused("BUDGET_DENIED")
        self.held[task_id] = Held(used, amount)
        return False

    def settle(self, task_id: str, used: Mapping[str, int]) -> None:
        """Charges what was used and gives the rest back. Raises Refused."""
        if (held := self.held.get(task_id)) is None:
            raise Refused("BUDGET_CONFLICT")
        self._charge(task_id, self._since(held, used))
        del self.held[task_id]

    def _since(self, held: Held, used: Mapping[str, int]) -> dict[str, int]:
        since = {name: used.get(name, 0) - held.baseline.get(name, 0) for name in held.amount}
        if any(amount < 0 for amount in since.values()):
            raise Refused("BUDGET_CONFLICT")
        return since

    def _charge(self, task_id: str, amounts: Mapping[str, int]) -> None:
        held = self.held[task_id]
        if any(amount > held.amount[name] for name, amount in amounts.items()):
            self.committed.update(held.amount)
            del self.held[task_id]
            raise Refused("BUDGET_EXCEEDED")
        self.committed.update(amounts)
