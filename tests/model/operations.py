"""Every operation of the API: its name in Python, how it is called, and which of its outcomes no rule brings about and why."""

import re
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

from tests.descriptors import methods
from tests.store.refusals.promised import codes


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of the API."""

    path: str
    request: Any
    answer: Any
    kind: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Many of one operation in one call; `kind` is where an item's answer stands in its outcome."""

    one: str
    kind: str


BATCHES: Final = {
    "create_tasks": Batch("create_task", "created"),
    "get_tasks": Batch("get_task", "task"),
    "heartbeat_tasks": Batch("heartbeat_task", "extended"),
    "append_checkpoints": Batch("append_checkpoint", "appended"),
    "complete_tasks": Batch("complete_task", "completed"),
    "complete_and_lease_tasks": Batch("complete_task", "completed"),
    "fail_tasks": Batch("fail_task", "failed"),
    "release_tasks": Batch("release_task", "released"),
}
LEFT_OUT: Final = {
    "explain_task": "says in words what rows say that others show: tests/store/test_explanations.py",
    "list_registrations": "remembers who asked for work, which decides nothing: tests/store/test_explanations.py",
    "list_audit_lines": "written for callers that are known, of whom the model has none: tests/security/store/test_audit.py",
}
"""Operations that no rule says, each with the reason."""
CODES: Final = {reason: code.name for reason, code in codes().items()}
"""The gRPC code of each reason."""


def read_operations() -> dict[str, Operation]:
    """All of `taskstore.v1`, by their names in Python."""
    return {in_python(name): _operation(method) for name, method in methods().items()}


def in_python(name: str) -> str:
    """A method's name as functions have it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _operation(method: MethodDescriptor) -> Operation:
    ways = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
    return Operation(
        f"/{method.containing_service.full_name}/{method.name}", message_factory.GetMessageClass(method.input_type),
        message_factory.GetMessageClass(method.output_type), "_".join(ways),
    )  # fmt: skip
