"""What a run holds of its tenant's budget: reserved before the code begins, settled before the lease is given up.

Only a workflow that declares limits reserves. The store says what each refusal asks for, see `errors.proto`.
"""

from typing import Final

import structlog

from store_service.client.endings import Confirm, Ending, Fail, Release
from store_service.client.errors import LeaseLost, StoreError
from store_service.client.lease_calls import LeaseCalls
from store_service.client.outcomes import INTERNAL_ERROR, ProtocolError
from store_service.client.usage import BudgetAmounts, Usage

_REST_MS: Final = 5_000  # how long a task rests that was not admitted, where the store does not say


class Reservation:
    """The reservation of one run, which an earlier run may have left behind. Raises LeaseLost."""

    def __init__(
        self,
        calls: LeaseCalls,
        limits: BudgetAmounts,
        usage: Usage,
        *,
        is_first_run: bool,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._calls = calls
        self._limits = limits
        self._usage = usage
        self._may_hold = not is_first_run
        self._log = log

    async def reserve(self) -> Ending | None:
        """Holds what the task may still use. What it returns instead ends the run before its code has begun."""
        try:
            try:
                adopted = await self._calls.reserve_budget(self._limits, self._usage.total)
            except StoreError as error:
                if error.reason != "BUDGET_CONFLICT" or not self._may_hold:
                    raise
                # An earlier run left a reservation under other limits, those of the code before this.
                await self._calls.settle_budget(self._usage.total)
                adopted = await self._calls.reserve_budget(self._limits, self._usage.total)
        except LeaseLost:
            raise
        except StoreError as error:
            return self._refused(error)
        self._may_hold = True
        self._log.debug("budget reserved", adopted=adopted)
        return None

    async def settle(self, ending: Ending) -> Ending:
        """Has what was used charged and the rest given back; returns how the run ends now."""
        if not self._may_hold:
            return ending
        try:
            await self._calls.settle_budget(self._usage.total)
        except LeaseLost:
            raise
        except StoreError as error:
            match error.reason:
                case "BUDGET_EXCEEDED":
                    return _after_exceeding(ending, error)
                case "BUDGET_NOT_CONFIGURED" | "BUDGET_CONFLICT":  # nothing is held any more
                    return ending
            raise
        return ending

    def _refused(self, error: StoreError) -> Ending | None:
        match error.reason:
            case "BUDGET_NOT_CONFIGURED":
                self._may_hold = False
                return None
            case "BUDGET_DENIED":
                self._may_hold = False
                return Release(delay_ms=error.retry_after_ms or _REST_MS, outcome="denied")
            case "BUDGET_EXCEEDED" | "BUDGET_CONFLICT":
                self._may_hold = False
                return _exceeded(error)
            case "INVALID_INPUT":
                return Fail(
                    ProtocolError(INTERNAL_ERROR, f"the limits of the workflow do not go with the budget: {error.message}")
                )
            case _:
                self._may_hold = True
                self._log.warning("the budget could not be reserved", code=error.code.name, reason=error.reason)
                return Release(delay_ms=_REST_MS)


def _after_exceeding(ending: Ending, error: StoreError) -> Ending:
    """The task fails for good, unless its caller wished its end."""
    match ending:
        case Confirm():
            return ending
        case Fail():
            return Fail(ending.error)
        case _:
            return _exceeded(error)


def _exceeded(error: StoreError) -> Fail:
    return Fail(ProtocolError(INTERNAL_ERROR, f"the task has used more than its limits allow: {error.message}"))
