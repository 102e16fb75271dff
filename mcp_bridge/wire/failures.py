"""What is answered when a call fails: one exception, and the one table of its codes. Source: contract, section 10.16."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mcp_bridge.wire import challenges
from mcp_bridge.wire.challenges import Challenge

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
FORBIDDEN: Final = 40300
KEY_CONFLICT: Final = 40900
TOO_MANY: Final = 42900
UNAVAILABLE: Final = 50300

STATUSES: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    INTERNAL_ERROR: 200,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    FORBIDDEN: 403,
    KEY_CONFLICT: 409,
    TOO_MANY: 429,
    UNAVAILABLE: 503,
}
"""The HTTP status of each code that the bridge itself answers with."""


class Failure(Exception):  # noqa: N818 (it is an answer)
    """A call ends with a JSON-RPC error. Everything in it is safe to show to the caller."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        data: object = None,
        status: int | None = None,
        retry_after_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
        closes: bool = False,
        is_of_http: bool = False,
        challenge: Challenge | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        """More about it, as JSON builtins or `msgspec.Raw`; None means none."""
        self.status = STATUSES.get(code, 200) if status is None else status
        self.headers = dict(headers or {})
        if retry_after_seconds is not None:
            self.headers["Retry-After"] = str(retry_after_seconds)
        self.closes = closes
        """Whether the connection must not be used again."""
        self.is_of_http = is_of_http
        """Whether the status says it, in every era; the JSON-RPC errors of earlier eras have the status 200."""
        self.challenge = challenge
        """What the client must bring to be let in."""
        self.request_id: int | str | None = None
        """The id to answer with, where it was read before a call was made of the message."""

    def body(self, request_id: int | str | None) -> bytes:
        """The answer. An id that could not be read is left out."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        answer: dict[str, Any] = {"jsonrpc": "2.0", "error": error}
        if request_id is not None:
            answer = {"jsonrpc": "2.0", "id": request_id, "error": error}
        return msgspec.json.encode(answer)


def refused(status: int, message: str, *, headers: Mapping[str, str] | None = None, closes: bool = False) -> Failure:
    """The HTTP request itself is refused, before anything of JSON-RPC is read."""
    return Failure(INVALID_REQUEST, message, status=status, headers=headers, closes=closes, is_of_http=True)


def unauthorized(description: str | None = None) -> Failure:
    """Nobody is let in without a token; with a `description`, of what was wrong with the one that was brought."""
    challenge = Challenge(challenges.INVALID_TOKEN if description else "", description or "")
    return _challenged(401, INVALID_REQUEST, description or "An access token is required", challenge)


def malformed_authorization(description: str) -> Failure:
    """The credentials are not written as credentials are."""
    return _challenged(400, INVALID_REQUEST, description, Challenge(challenges.INVALID_REQUEST, description))


def insufficient_scope(scopes: Sequence[str]) -> Failure:
    """The token is good, but not for this. All that it takes is told at once. Source: contract, section 10.18."""
    description = "The access token has not all the scopes that this takes"
    return _challenged(403, FORBIDDEN, description, Challenge(challenges.INSUFFICIENT_SCOPE, description, scopes))


def tenant_not_served() -> Failure:
    """The one answer for a token of a tenant that there is not, and for one of another tenant than its path names."""
    return _challenged(403, FORBIDDEN, "The access token is for no tenant that is served here", None)


def _challenged(status: int, code: int, message: str, challenge: Challenge | None) -> Failure:
    return Failure(code, message, status=status, challenge=challenge, is_of_http=True)


def parse_error(reason: str) -> Failure:
    """The body is not JSON that can be read."""
    return Failure(PARSE_ERROR, f"Parse error: {reason}")


def invalid_request(reason: str) -> Failure:
    """The body is JSON, but no JSON-RPC request or notification."""
    return Failure(INVALID_REQUEST, f"Invalid request: {reason}")


def invalid_params(reason: str) -> Failure:
    """The parameters break the method's rules."""
    return Failure(INVALID_PARAMS, f"Invalid params: {reason}")


def task_not_found() -> Failure:
    """The one answer for an unknown, foreign, expired or malformed task id."""
    return Failure(INVALID_PARAMS, "Task not found")


def call_is_over() -> Failure:
    """The call was made before under the same key or state, and its task's handle has ended since."""
    return Failure(KEY_CONFLICT, "This call was made before, and its task can be looked at no more; call anew, with a new key")


def session_not_found() -> Failure:
    """The session that a request names was not opened here by the same caller, or cannot be checked any more. MCP has the
    client open another."""
    return refused(404, "Session not found; initialize again")


def header_mismatch(reason: str) -> Failure:
    """A header is missing, malformed, doubled, or says something else than the body."""
    return Failure(HEADER_MISMATCH, f"Header mismatch: {reason}")


def missing_capability(required: Mapping[str, object]) -> Failure:
    """The client did not declare on this request what it takes."""
    return Failure(MISSING_CAPABILITY, "Missing required client capability", data={"requiredCapabilities": dict(required)})


def unsupported_version(requested: str, supported: tuple[str, ...]) -> Failure:
    """The client speaks another revision of the protocol."""
    data = {"supported": list(supported), "requested": requested[:64]}
    return Failure(UNSUPPORTED_VERSION, "Unsupported protocol version", data=data)


def method_not_found() -> Failure:
    """The method is not served."""
    return Failure(METHOD_NOT_FOUND, "Method not found")


def too_many(message: str, seconds: float) -> Failure:
    """There is more of it than is allowed; in `seconds` there may be more again."""
    return Failure(TOO_MANY, message, retry_after_seconds=max(1, math.ceil(seconds)))


def unavailable(retry_after_seconds: int = 1) -> Failure:
    """The store cannot be asked right now."""
    return Failure(UNAVAILABLE, "Temporarily unavailable, try again", retry_after_seconds=max(1, retry_after_seconds))


def internal_error(correlation_id: str) -> Failure:
    """Something of ours is broken. The log has it under the same correlation id."""
    return Failure(INTERNAL_ERROR, "Internal error", data={"correlationId": correlation_id})
