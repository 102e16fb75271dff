"""JSON-RPC over Streamable HTTP: one POST for each request, repeated while that is safe and the deadline allows."""

import asyncio
import contextlib
import email.utils
import itertools
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp
import msgspec

from mcp_bridge.client.connection import open_socket
from mcp_bridge.client.errors import ProtocolFailure, TransportError
from mcp_bridge.client.event_stream import EventReader, EventStreamError
from mcp_bridge.client.headers import request_headers
from mcp_bridge.client.policy import Policy
from mcp_bridge.client.traced import RequestSpan, Traces
from mcp_bridge.wire.failures import UNAVAILABLE, UNSUPPORTED_VERSION
from mcp_bridge.wire.headers import EVENT_STREAM, JSON
from mcp_bridge.wire.mcp import CLIENT_CAPABILITIES, PROTOCOL_VERSION, VERSION
from mcp_bridge.wire.mirrored import Mirrored

CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
Token = str | Callable[[], Awaitable[str]]
"""A bearer token, or what gives the current one before each request."""

_BEARER = re.compile(r"[\x21-\x7e]{1,16384}")
_AWAY: Final = frozenset((429, 502, 503, 504))
_NOT_DONE: Final = frozenset((429,))


class _Fault(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


class Message(msgspec.Struct):
    """An answer or a notification."""

    id: str | int | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Empty where there is none."""
    error: _Fault | None = None


_DECODER: Final = msgspec.json.Decoder(Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, and how."""

    method: str
    params: Mapping[str, Any]
    mirrored: Mirrored | None = None
    attempt_seconds: float | None = None
    """How long one attempt may take; None is until the deadline."""
    is_idempotent: bool = True
    on_notification: Callable[["Message"], None] | None = None


class OutOfTime(Exception):  # noqa: N818 (it carries the failure)
    """A request was repeated as long as it might be; `failure` is how it ended the last time."""

    def __init__(self, failure: TransportError | ProtocolFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class _Repeatable(Exception):  # noqa: N818 (it carries the failure)
    """An attempt failed in a way that another one may not."""

    def __init__(self, failure: TransportError | ProtocolFailure, *, may_be_done: bool) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.may_be_done = may_be_done


def write_request(
    method: str,
    params: Mapping[str, Any],
    *,
    request_id: int | str,
    capabilities: Mapping[str, Any],
    client_info: Mapping[str, Any],
    mirrored: Mirrored | None = None,
    trace: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], dict[str, Any]]:
    """The header fields and the body of a request."""
    meta = {
        PROTOCOL_VERSION: VERSION,
        CLIENT_INFO: client_info,
        CLIENT_CAPABILITIES: capabilities,
        **(trace or {}),
        **params.get("_meta", {}),
    }
    body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}
    return request_headers(method, params, mirrored), body


class Transport:
    """Sends requests to one endpoint. Use it as a context."""

    def __init__(
        self,
        url: str,
        *,
        capabilities: Mapping[str, Any],
        client_info: Mapping[str, Any],
        token: Token | None,
        policy: Policy,
        traces: Traces | None = None,
    ) -> None:
        self.url = url
        self._capabilities = capabilities
        self._client_info = client_info
        self._token = token
        self._policy = policy
        self._traces = traces
        self._ids = itertools.count(1)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._policy.attempt_seconds)
        connector = aiohttp.TCPConnector(socket_factory=open_socket)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(self, request: Request, *, until: float) -> bytes:
        """The result of a request, as JSON.

        Repeated until `until`, by `time.monotonic()`, when the server is not reached, is away, or asks to come later.
        A request that is not idempotent is only repeated when it was surely not carried out. Raises ProtocolFailure,
        TransportError, and OutOfTime when `until` comes before the next attempt.
        """
        for attempt in itertools.count(1):
            try:
                return await self._attempt(request, until)
            except _Repeatable as trouble:
                pause = max(self._policy.backoff(attempt), trouble.failure.retry_after_seconds or 0)
                if trouble.may_be_done and not request.is_idempotent and time.monotonic() < until:
                    raise trouble.failure from None
                if time.monotonic() + pause >= until:
                    raise OutOfTime(trouble.failure) from None
                await asyncio.sleep(pause)
            except ProtocolFailure as failure:
                if attempt > 1 or not _speaks_ours(failure):
                    raise
        raise AssertionError("the loop above has no end")

    async def stream(self, method: str, params: Mapping[str, Any]) -> AsyncGenerator[Message, None]:
        """The notifications that a request is answered with, until its result, which ends them. One attempt.

        Raises ProtocolFailure, and TransportError when the stream is lost.
        """
        try:
            async with aclosing(self._messages(Request(method=method, params=params), self._policy.quiet_seconds)) as messages:
                async for message in messages:
                    if message.method is None:
                        _result(message, 200)
                        return
                    yield message
        except _Repeatable as trouble:
            raise trouble.failure from None

    async def _attempt(self, request: Request, until: float) -> bytes:
        left = max(0.0, until - time.monotonic())
        try:
            async with (
                asyncio.timeout(left if request.attempt_seconds is None else min(left, request.attempt_seconds)),
                aclosing(self._messages(request, None)) as messages,
            ):
                async for message in messages:
                    if message.method is None:
                        if message.error is not None and message.error.code == UNAVAILABLE:  # after a stream had begun
                            raise _Repeatable(_failure(message.error, 200), may_be_done=True)
                        return _result(message, 200)
                    if request.on_notification is not None:
                        request.on_notification(message)
        except TimeoutError:
            raise _Repeatable(TransportError("no answer in time", is_unknown=True), may_be_done=True) from None
        raise _Repeatable(TransportError("the stream ended without an answer", is_unknown=True), may_be_done=True)

    async def _messages(self, request: Request, quiet_seconds: float | None) -> AsyncGenerator[Message, None]:
        session, request_id = self._session, next(self._ids)
        if session is None:
            raise RuntimeError("the client is used outside of its context")
        with RequestSpan(self._traces, self.url, request.method, request.params, request_id) as span:
            try:
                async with aclosing(self._exchange(session, request, request_id, span.meta, quiet_seconds)) as messages:
                    async for message in messages:
                        if message.error is not None:
                            span.failed(str(message.error.code))
                        yield message
            except _Repeatable as trouble:
                span.failed(_kind(trouble.failure))
                raise
            except (ProtocolFailure, TransportError) as failure:
                span.failed(_kind(failure))
                raise
            except asyncio.CancelledError:
                span.failed("cancelled")
                raise

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        request: Request,
        request_id: int,
        trace: Mapping[str, str],
        quiet_seconds: float | None,
    ) -> AsyncGenerator[Message, None]:
        headers, body = write_request(
            request.method,
            _with_progress_token(request.params, request_id),
            request_id=request_id,
            capabilities=self._capabilities,
            client_info=self._client_info,
            mirrored=request.mirrored,
            trace=trace,
        )
        if self._token is not None:
            token = self._token if isinstance(self._token, str) else await self._token()
            if not _BEARER.fullmatch(token):
                raise ValueError("a bearer token is 1 to 16384 visible ASCII characters")
            headers["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._policy.attempt_seconds, sock_read=quiet_seconds)
        try:
            async with (
                session.post(
                    self.url, data=msgspec.json.encode(body), headers=headers, timeout=timeout, allow_redirects=False
                ) as response,
                aclosing(self._read(response)) as messages,
            ):
                async for message in messages:
                    is_nameless = message.id is None and message.error is not None  # of a request that could not be read
                    if message.method is None and message.id != request_id and not is_nameless:
                        raise TransportError("the answer is that of another request", is_unknown=True)
                    yield message
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _Repeatable(TransportError(f"{self.url} is not reached: {error}"), may_be_done=False) from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            lost = TransportError(f"the connection was lost: {error or type(error).__name__}", is_unknown=True)
            raise _Repeatable(lost, may_be_done=True) from error

    async def _read(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Message, None]:
        """Every message of a response. Raises what an answer that is none of JSON-RPC means."""
        if response.content_type == EVENT_STREAM and response.status == 200:
            reader = EventReader(event_bytes=self._policy.answer_bytes)
            async for piece in response.content.iter_any():
                try:
                    events = reader.feed(piece)
                except EventStreamError as error:
                    raise TransportError(str(error), is_unknown=True) from None
                for event in events:
                    yield _decode(event, response.status)
            return
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > self._policy.answer_bytes:
                raise TransportError(f"the answer is larger than {self._policy.answer_bytes} bytes", is_unknown=True)
        challenge = response.headers.get("WWW-Authenticate")
        failure: TransportError | ProtocolFailure = TransportError(
            f"HTTP {response.status}, not an answer of MCP",
            status=response.status,
            is_unknown=response.status >= 500,
            challenge=challenge,
        )
        if response.content_type == JSON:
            message = _decode(bytes(body), response.status)
            if response.status == 200 or message.error is None:
                yield message
                return
            failure = _failure(message.error, response.status, challenge)
        if response.status in _AWAY:
            failure.retry_after_seconds = _retry_after(response.headers.get("Retry-After", ""))
            raise _Repeatable(failure, may_be_done=response.status not in _NOT_DONE)
        raise failure


def _kind(failure: TransportError | ProtocolFailure) -> str:
    """What a span tells of a failure."""
    return str(failure.code) if isinstance(failure, ProtocolFailure) else type(failure).__name__


def _with_progress_token(params: Mapping[str, Any], request_id: int) -> Mapping[str, Any]:
    """A wish for progress gets the request's own id as its token."""
    meta = params.get("_meta", {})
    return {**params, "_meta": {**meta, "progressToken": request_id}} if "progressToken" in meta else params


def _decode(data: bytes, status: int) -> Message:
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"HTTP {status}, the answer cannot be read: {error}", status=status, is_unknown=True) from None


def _result(message: Message, status: int) -> bytes:
    if message.error is not None:
        raise _failure(message.error, status)
    if not message.result:
        raise TransportError("the answer has neither a result nor an error", status=status, is_unknown=True)
    return bytes(message.result)


def _failure(fault: _Fault, status: int, challenge: str | None = None) -> ProtocolFailure:
    return ProtocolFailure(fault.code, fault.message, fault.data, status=status, challenge=challenge)


def _speaks_ours(failure: ProtocolFailure) -> bool:
    """Whether the server refused our version and names it as one that it speaks: then it is asked once more."""
    data = failure.data
    return failure.code == UNSUPPORTED_VERSION and isinstance(data, dict) and VERSION in (data.get("supported") or ())


def _retry_after(text: str) -> float | None:
    """The seconds that `Retry-After` asks for, written as a number or as a date."""
    if text.isascii() and text.isdigit():
        return float(text)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None
