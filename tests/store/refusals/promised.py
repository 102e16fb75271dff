"""Which refusals the API promises, read from the comments of its files, which are its manual."""

import re
from pathlib import Path
from typing import Final

import grpc
from taskstore.v1 import errors_pb2

PROTO: Final = Path(__file__).parents[3] / "proto" / "taskstore" / "v1"
REASONS: Final = frozenset(
    value.name.removeprefix("ERROR_REASON_") for value in errors_pb2.ErrorReason.DESCRIPTOR.values if value.number
)
ANYWHERE: Final = frozenset(
    {
        *("INVALID_INPUT", "STORAGE_UNAVAILABLE", "OVERLOADED", "OUTCOME_UNKNOWN"),
        *("UNAUTHENTICATED", "PERMISSION_DENIED", "POLICY_UNAVAILABLE"),  # shown in tests/security/store
        "TENANT_MOVED",  # shown in test_broken_moves.py
    }
)
"""What `errors.proto` says of every method, and no method says of itself."""
RETRIED: Final = frozenset(
    {
        *("OUTSTANDING_LIMIT", "SIGNAL_LIMIT", "CREATE_RATE", "BUDGET_DENIED"),
        *("STORAGE_UNAVAILABLE", "OUTCOME_UNKNOWN", "DRAINING", "OVERLOADED", "POLICY_UNAVAILABLE", "TENANT_MOVED"),
    }
)
"""Where waiting helps, so that the refusal says how long."""

Pair = tuple[str, str]
"""A method and a reason."""


def pairs() -> set[Pair]:
    """Each method with each reason that its comment names after `refused with`."""
    found = set()
    for file in PROTO.glob("*.proto"):
        for comment, method in re.findall(r"((?:^ *//.*\n)+) *rpc (\w+)\(", file.read_text(), re.MULTILINE):
            sentences = re.sub(r"\s*\n\s*// ", " ", comment).split(".")
            named = {
                word for sentence in sentences if "efused with" in sentence for word in re.findall(r"\b[A-Z_]{4,}\b", sentence)
            }
            assert named <= REASONS, f"{method} names what is no reason: {named - REASONS}"
            found |= {(method, reason) for reason in named}
    return found


def codes() -> dict[str, grpc.StatusCode]:
    """The status code of each reason, with which its comment begins."""
    text = (PROTO / "errors.proto").read_text()
    comments = re.findall(r"((?:^ *//.*\n)+) *ERROR_REASON_(\w+) = [1-9]", text, re.MULTILINE)
    found = {}
    for comment, reason in comments:
        code = re.match(r"\s*// ([A-Z_]+)\.", comment)
        assert code is not None, f"the comment of {reason} does not begin with its code"
        found[reason] = grpc.StatusCode[code[1]]
    return found
