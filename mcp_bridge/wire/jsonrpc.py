"""The JSON-RPC envelope. Source: contract, section 1, and cases 1 to 4."""

from typing import Any, Final, TypeGuard

import msgspec

from mcp_bridge.wire.failures import Failure, invalid_request, parse_error
from mcp_bridge.wire.strict import Unreadable, parse

ID_BYTES: Final = 256
METHOD_BYTES: Final = 128
_SPACE: Final = b" \t\r\n"


class Request(msgspec.Struct, frozen=True):
    """A request: it is answered, under its id."""

    id: int | str
    method: str
    params: dict[str, Any]
    body: bytes
    """The bytes it was read from, for members that must be passed on as they are."""


class Notification(msgspec.Struct, frozen=True):
    """A notification: it is accepted and not answered."""

    method: str
    params: dict[str, Any]


def read_message(body: bytes) -> Request | Notification:
    """Reads one request or notification.

    Raises Failure: -32700 for bytes that are not JSON, -32600 for JSON that is neither. A failure carries the
    request's id where it could be read. A batch is refused at its first byte, however long it is.
    """
    if body.lstrip(_SPACE)[:1] == b"[":
        raise invalid_request("batches are not supported; send one request at a time")
    try:
        message = parse(body)
    except Unreadable as unreadable:
        raise _with_id(parse_error(unreadable.reason), _usable_id(unreadable.value)) from None
    if not isinstance(message, dict):
        raise invalid_request("the body must be one JSON object")
    request_id = _usable_id(message)
    if "id" in message and request_id is None:
        raise invalid_request("id must be a string of at most 256 bytes or an integer")
    reason = _fault(message)
    if reason is not None:
        raise _with_id(invalid_request(reason), request_id)
    if request_id is None:
        return Notification(message["method"], message.get("params", {}))
    return Request(request_id, message["method"], message.get("params", {}), body)


def result_answer(request_id: int | str, result: bytes) -> tuple[bytes, ...]:
    """The answer that carries `result`, a JSON object, as it is: in pieces, so that a large one is not copied."""
    return b'{"jsonrpc":"2.0","id":%b,"result":' % msgspec.json.encode(request_id), result, b"}"


def notification(method: str, params: dict[str, Any]) -> bytes:
    """A notification to the client."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})


def _fault(message: dict[str, Any]) -> str | None:
    if message.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if "result" in message or "error" in message:
        return "responses are not accepted"
    method = message.get("method")
    if not isinstance(method, str) or not 0 < len(method.encode()) <= METHOD_BYTES:
        return "method must be a string of 1 to 128 bytes"
    if not isinstance(message.get("params", {}), dict):
        return "params must be an object"
    return None


def is_request_id(value: object) -> TypeGuard[int | str]:
    """Whether this is the id of a request: a bounded string or an integer, but no boolean."""
    if isinstance(value, str):
        return len(value.encode()) <= ID_BYTES
    return isinstance(value, int) and not isinstance(value, bool)


def _usable_id(message: object) -> int | str | None:
    """The id, if it is one."""
    value = message.get("id") if isinstance(message, dict) else None
    return value if is_request_id(value) else None


def _with_id(failure: Failure, request_id: int | str | None) -> Failure:
    failure.request_id = request_id
    return failure
