"""What goes over the wire, typed. Unknown members are ignored, integers of any size are kept."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]
TERMINAL: Final = frozenset(("completed", "failed", "cancelled"))


class InputRequest(Struct, frozen=True):
    """A question to the client: `elicitation/create`, `sampling/createMessage` or `roots/list`."""

    method: str
    params: dict[str, Any] = {}


class ToolResult(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a tool answered."""

    content: list[dict[str, Any]]
    structured_content: Any = UNSET
    """The answer as JSON, or `UNSET` where the tool gave none; None is JSON's null."""
    is_error: bool = False
    """Whether the tool says that it went wrong."""
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)

    @property
    def text(self) -> str:
        """The texts of the content, one after the other."""
        return "\n".join(str(block.get("text", "")) for block in self.content if block.get("type") == "text")


class TaskFault(Struct, frozen=True):
    """The protocol error in which a task ended."""

    code: int
    message: str
    data: Any = None


class TaskSnapshot(Struct, frozen=True, rename="camel"):
    """A task as it was when the server looked."""

    task_id: str
    status: Status
    created_at: datetime
    last_updated_at: datetime
    ttl_ms: int | None
    """How long the handle is usable, counted from its creation; None is without end. It grows while the task lives."""
    poll_interval_ms: int | None = None
    status_message: str | None = None
    input_requests: dict[str, InputRequest] = {}
    """The questions that are open, by key."""
    result: ToolResult | None = None
    error: TaskFault | None = None

    def __post_init__(self) -> None:
        """Times that name no zone are taken for UTC, so that they can be compared."""
        for name in ("created_at", "last_updated_at"):
            if (time := getattr(self, name)).tzinfo is None:
                msgspec.structs.force_setattr(self, name, time.replace(tzinfo=UTC))

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended."""
        return self.status in TERMINAL

    @property
    def expires_at(self) -> datetime | None:
        """When the handle ends, by the server's clock, unless the task lives on; None is without end, or past all dates."""
        try:
            return None if self.ttl_ms is None else self.created_at + timedelta(milliseconds=self.ttl_ms)
        except OverflowError:
            return None


class ResultMeta(Struct, frozen=True):
    """What a result says beside itself."""

    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)


class TaskHandle(Struct, frozen=True):
    """All that is needed to come back to a task, in any process: plain data, without secrets. Store it as JSON."""

    task_id: str
    url: str
    """The endpoint that gave it out."""
    tool: str | None = None
    """The tool that was called; by it the result is checked against the output schema."""

    def to_json(self) -> str:
        """The handle as JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The handle that `to_json` wrote. Raises ValueError."""
        return msgspec.json.decode(text, type=cls)


class Progress(Struct, frozen=True):
    """How far the work has come. Of a task only the message is known."""

    progress: float | None = None
    total: float | None = None
    message: str | None = None


class Tool(Struct, frozen=True, rename="camel"):
    """A tool as the server lists it."""

    name: str
    input_schema: dict[str, Any]
    title: str | None = None
    description: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = {}


class ToolPage(Struct, frozen=True, rename="camel"):
    """One page of `tools/list`."""

    tools: list[Tool]
    next_cursor: str | None = None
    ttl_ms: int = 0


class Discovery(Struct, frozen=True, rename="camel"):
    """What `server/discover` tells."""

    supported_versions: list[str]
    capabilities: dict[str, Any]
    instructions: str | None = None
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)


class ResultKind(Struct, rename="camel"):
    """Of which kind a result is. Without `resultType` it is complete."""

    result_type: str = "complete"


class Outcome(Struct, rename="camel"):
    """The result of `tools/call` before it is known which kind it is. Without `resultType` it is complete."""

    result_type: str = "complete"
    task_id: str | None = None
    input_requests: dict[str, InputRequest] = {}
    request_state: str | UnsetType = UNSET
