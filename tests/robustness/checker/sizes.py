"""F22: what is too large is refused for good, and no answer carries more than it may."""

from collections.abc import Iterator
from typing import Final

from store_service.model.limits import ANSWER_BYTES
from tests.robustness.evidence import Evidence

_FOR_GOOD: Final = {"input": "INVALID_ARGUMENT", "signal": "INVALID_ARGUMENT", "checkpoint": "INVALID_ARGUMENT",
                    "result": "INVALID_ARGUMENT", "message": "RESOURCE_EXHAUSTED"}  # fmt: skip
_ON_THE_WAY: Final = frozenset(("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"))
"""What a call meets that did not get through."""


def check_sizes(evidence: Evidence) -> Iterator[str]:
    """All of it."""
    for call in evidence.calls:
        if call.op == "too much" and call.outcome not in _ON_THE_WAY and call.outcome != _FOR_GOOD[call.detail["what"]]:
            yield f"F22 {call.client}: too long a {call.detail['what']} was answered {call.outcome}"
        elif call.op == "take bulk" and call.detail["bytes"] > ANSWER_BYTES:
            yield f"F22 {call.client}: a claim was answered with {call.detail['bytes']} bytes of inputs"
