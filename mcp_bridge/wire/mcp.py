"""The words of MCP, and what every request says about itself. Source: contract, section 2."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcp_bridge.wire.failures import Failure, invalid_params, missing_capability
from mcp_bridge.wire.jsonrpc import is_request_id

VERSION: Final = "2026-07-28"
SUPPORTED_VERSIONS: Final = (VERSION,)
LEGACY_VERSIONS: Final = ("2025-11-25", "2025-06-18")
"""The revisions that open with `initialize` and are served too; the first is offered to whoever asks for another."""

TASKS: Final = "io.modelcontextprotocol/tasks"
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
IDEMPOTENCY_KEY: Final = "dev.tenure/idempotencyKey"
"""Our own `_meta` key; the README documents it."""
PREFLIGHT: Final = "dev.tenure/preflight"
"""The member of a task's input that has the answers to its route's preflight questions; the README documents it."""

WHY: Final = "dev.tenure/why"
"""Our own `_meta` key of `tasks/get` and its result; the README documents it."""

INITIALIZE: Final = "initialize"
LISTEN: Final = "subscriptions/listen"
CANCELLED: Final = "notifications/cancelled"
NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The member of `params` that `Mcp-Name` repeats, by method."""

CAPABILITIES_BYTES: Final = 64 * 1024
_LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_CAPABILITY_OBJECTS: Final = frozenset(("elicitation", "sampling", "roots", "extensions", "experimental"))


class Meta(msgspec.Struct, frozen=True):
    """What a request says about itself in `params._meta`."""

    version: str
    """Empty for an earlier client, whose requests do not say it."""
    capabilities: dict[str, Any]
    members: dict[str, Any]
    """All of `_meta`."""

    @property
    def has_tasks(self) -> bool:
        """Whether the client declared the Tasks extension on this request; earlier requests do not count."""
        return isinstance(self.capabilities.get("extensions", {}).get(TASKS), dict)

    def require_tasks(self) -> None:
        """Raises Failure unless the client declared the Tasks extension on this request."""
        if not self.has_tasks:
            raise tasks_required()

    def require(self, names: tuple[str, ...]) -> None:
        """Raises Failure unless the client declared each of `names`, for example `sampling`."""
        missing: dict[str, object] = {name: {} for name in names if name not in self.capabilities}
        if missing:
            raise missing_capability(missing)


def read_legacy_meta(params: dict[str, Any]) -> Meta:
    """What an earlier client's request says about itself. It declares nothing: whatever such a client can do, a call of its
    cannot be asked. Raises Failure -32602."""
    meta = params.get("_meta", {})
    if not isinstance(meta, dict):
        raise invalid_params("_meta must be an object")
    return Meta("", {}, meta)


def tasks_required() -> Failure:
    """The client must declare the Tasks extension."""
    return missing_capability({"extensions": {TASKS: {}}})


def names_version(params: dict[str, Any]) -> bool:
    """Whether `params` has a `_meta` of this era. Source: contract, section 10.5."""
    meta = params.get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION in meta


def read_meta(params: dict[str, Any]) -> Meta:
    """Reads `params._meta`. Raises Failure -32602 where a required member is missing or malformed."""
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        raise invalid_params("_meta must be an object")
    version = meta.get(PROTOCOL_VERSION)
    if not isinstance(version, str):
        raise invalid_params(f"_meta must have {PROTOCOL_VERSION}, a string")
    capabilities = meta.get(CLIENT_CAPABILITIES)
    if not isinstance(capabilities, dict):
        raise invalid_params(f"_meta must have {CLIENT_CAPABILITIES}, an object")
    for name in _CAPABILITY_OBJECTS & capabilities.keys():
        if not isinstance(capabilities[name], dict):
            raise invalid_params(f"{CLIENT_CAPABILITIES} has {name}, which must be an object")
    if meta.get(LOG_LEVEL, _LOG_LEVELS[0]) not in _LOG_LEVELS:  # nothing is logged to clients, whatever they ask for
        raise invalid_params(f"_meta has {LOG_LEVEL}, which must be one of {', '.join(_LOG_LEVELS)}")
    return Meta(version, capabilities, meta)


class _ResponsesParams(msgspec.Struct):
    responses: dict[str, msgspec.Raw] = msgspec.field(name="inputResponses", default_factory=dict)


class _ResponsesBody(msgspec.Struct):
    params: _ResponsesParams


_RESPONSES_DECODER: Final = msgspec.json.Decoder(_ResponsesBody)


def read_responses(params: dict[str, Any], body: bytes) -> dict[str, bytes]:
    """The values of `inputResponses` as the bytes that were sent; none if it is not there. Raises Failure -32602."""
    if not isinstance(params.get("inputResponses", {}), dict):
        raise invalid_params("inputResponses must be an object")
    return _as_bytes(_RESPONSES_DECODER.decode(body).params.responses)


def _as_bytes(responses: dict[str, msgspec.Raw]) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in responses.items()}


class _CallMeta(msgspec.Struct):
    capabilities: msgspec.Raw = msgspec.field(name=CLIENT_CAPABILITIES)


class _CallParams(_ResponsesParams, kw_only=True):
    meta: _CallMeta = msgspec.field(name="_meta")
    arguments: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class _CallBody(msgspec.Struct):
    params: _CallParams


_CALL_DECODER: Final = msgspec.json.Decoder(_CallBody)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The parameters of `tools/call`, the arguments and the capabilities also as the bytes that were sent."""

    tool: str
    arguments: dict[str, Any]
    arguments_json: bytes
    capabilities_json: bytes
    responses: dict[str, bytes]
    """`inputResponses`, each value as the bytes that were sent."""
    state: str | None
    """`requestState`."""


def read_tool_call(params: dict[str, Any], body: bytes) -> ToolCall:
    """Reads the parameters of `tools/call` from a body that was read before. Raises Failure -32602."""
    tool, arguments = _read_tool(params)
    if not isinstance(params.get("inputResponses", {}), dict):
        raise invalid_params("inputResponses must be an object")
    if not isinstance(params.get("requestState", ""), str):
        raise invalid_params("requestState must be a string")
    progress_token(params["_meta"])
    raw = _CALL_DECODER.decode(body).params
    capabilities = bytes(raw.meta.capabilities)
    if len(capabilities) > CAPABILITIES_BYTES:
        raise invalid_params(f"{CLIENT_CAPABILITIES} is larger than {CAPABILITIES_BYTES} bytes")
    responses = _as_bytes(raw.responses)
    return ToolCall(tool, arguments, bytes(raw.arguments), capabilities, responses, params.get("requestState"))


class _LegacyCallParams(msgspec.Struct):
    arguments: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class _LegacyCallBody(msgspec.Struct):
    params: _LegacyCallParams


_LEGACY_CALL_DECODER: Final = msgspec.json.Decoder(_LegacyCallBody)


def read_legacy_tool_call(params: dict[str, Any], meta: Meta, body: bytes) -> ToolCall:
    """Reads the parameters of an earlier client's `tools/call`. Raises Failure -32602."""
    tool, arguments = _read_tool(params)
    progress_token(meta.members)
    raw = _LEGACY_CALL_DECODER.decode(body).params
    return ToolCall(tool, arguments, bytes(raw.arguments), b"{}", {}, None)


def _read_tool(params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    tool, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(tool, str):
        raise invalid_params("name must be a string")
    if not isinstance(arguments, dict):
        raise invalid_params("arguments must be an object")
    return tool, arguments


def progress_token(meta: dict[str, Any]) -> str | int | None:
    """The token under which the caller wants to hear of progress, if it does. Raises Failure -32602."""
    token = meta.get("progressToken")
    if is_request_id(token):
        return token
    if "progressToken" in meta:
        raise invalid_params("progressToken must be a string of at most 256 bytes or an integer")
    return None


def wants_why(meta: Meta) -> bool:
    """Whether a `tasks/get` asks why the task is where it is. Raises Failure -32602."""
    wanted = meta.members.get(WHY, False)
    if not isinstance(wanted, bool):
        raise invalid_params(f"_meta has {WHY}, which must be true or false")
    return wanted


def read_task_id(params: dict[str, Any]) -> str:
    """Reads the parameters of `tasks/*`. Whether the id has the form of one is not told. Raises Failure -32602."""
    task_id = params.get("taskId")
    if not isinstance(task_id, str):
        raise invalid_params("taskId must be a string")
    return task_id
