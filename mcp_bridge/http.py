"""Floor 4: `POST /mcp` and `POST /t/{tenant}/mcp`. From a request of HTTP to the answer of a method, the first failure winning.

Source: contract, sections 1, 10.6 and 10.8; security checklist H1 to H4 and H18 to H21.
"""

import asyncio
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from mcp_bridge.access.callers import Arrival, Authenticate
from mcp_bridge.access.hosts import Guard
from mcp_bridge.access.limits import Limiter
from mcp_bridge.access.places import PATH, UNNAMED, Place, nothing_here, place_at
from mcp_bridge.access.proxies import Proxies, Source
from mcp_bridge.access.resource import Resource
from mcp_bridge.body import read_body
from mcp_bridge.connections import HEADERS, HEADERS_BYTES, JSON_HEADERS, TARGET_BYTES
from mcp_bridge.dispatch import Dispatcher
from mcp_bridge.journal import Entry, Journal, failure_for
from mcp_bridge.methods.calls import Outbox
from mcp_bridge.metrics import Metrics
from mcp_bridge.spans import Spans
from mcp_bridge.stream import EventStream, converse
from mcp_bridge.whole import Whole, head_of
from mcp_bridge.wire.failures import Failure, refused
from mcp_bridge.wire.headers import EVENT_STREAM, Form, Headers, accepts_stream, admits_stream, check_content, choose_form
from mcp_bridge.wire.inbound import Era, era_of
from mcp_bridge.wire.jsonrpc import Notification, Request, read_message, result_answer
from mcp_bridge.wire.sse import event

_STREAMED: Final = {"tools/call": accepts_stream, "subscriptions/listen": admits_stream}
"""The methods whose answer may be a stream, and whether the client's header allows one."""
_LASTING: Final = "subscriptions/listen"
_STREAM_HEADERS: Final = {**HEADERS, "X-Accel-Buffering": "no", "Content-Type": EVENT_STREAM}
_JSON_HEAD: Final = head_of(JSON_HEADERS)


class _Exchange(Entry):
    """What is known of a call so far, and what its answer needs."""

    era: Era = Era.MODERN
    place: Place = UNNAMED
    form: Form = Form.JSON
    stream: EventStream | None = None
    """Where the answer goes, if it may be a stream; it need not have begun."""
    status: int = 0
    reply_headers: dict[str, str] = msgspec.field(default_factory=dict)


class Endpoint:
    """Answers every HTTP request of the bridge's port."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        guard: Guard,
        proxies: Proxies,
        authenticate: Authenticate,
        resource: Resource | None,
        limiter: Limiter,
        metrics: Metrics,
        stream_class: type[EventStream] = EventStream,
        spans: Spans | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._stream_class = stream_class
        self._guard = guard
        self._proxies = proxies
        self._authenticate = authenticate
        self._resource = resource
        self._limiter = limiter
        self._journal = Journal(metrics, spans)
        self._under_way = 0
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one request. It is cancelled when the client leaves."""
        exchange = _Exchange()
        self._under_way += 1
        self._idle.clear()
        try:
            response = await self._answer(request, exchange)
            if self._is_draining:
                response.force_close()
            return response
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
            self._journal.tell(exchange, {"status": int(exchange.status)})

    async def drain(self, seconds: float) -> None:
        """Waits until no call is under way, but no longer than `seconds`. Connections are closed after their answer."""
        self._is_draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass

    async def _answer(self, request: web.BaseRequest, exchange: _Exchange) -> web.StreamResponse:
        try:
            if (metadata := self._metadata(request)) is not None:
                exchange.outcome, exchange.status = "OK", metadata.status
                return metadata
            result = await self._result(request, exchange)
        except ConnectionError:  # the client left
            raise
        except Exception as error:  # noqa: BLE001 (the last resort: a caller is always answered)
            failure = failure_for(error)
        else:
            return await _succeed(exchange, result)
        if exchange.stream is not None and exchange.stream.is_begun:  # its status went out: the error comes inside
            exchange.outcome, exchange.status = str(failure.code), HTTPStatus.OK
            return await exchange.stream.end(failure.body(exchange.request_id))
        if failure.challenge is not None and self._resource is not None:
            failure.headers["WWW-Authenticate"] = self._resource.challenge(exchange.place, failure.challenge)
        return _refuse(exchange, failure)

    async def _result(self, request: web.BaseRequest, exchange: _Exchange) -> tuple[bytes, ...] | None:
        """The whole answer to a request, in pieces; None for a notification. Raises Failure."""
        headers = Headers.read(request.headers, request.raw_headers)
        place = exchange.place = _read_place(request, headers)
        source = self._check_source(request, headers)
        caller = exchange.caller = await self._authenticate(Arrival(place, headers, source))
        self._limiter.take_request(caller)
        check_content(headers)
        exchange.form = choose_form(headers)
        body = await read_body(request)
        self._limiter.take_body(caller, len(body))
        message = self._read(body, headers, exchange)
        if isinstance(message, Notification):
            await self._dispatcher.hear(message, headers=headers, caller=caller)
            return None
        era = exchange.era = era_of(message, headers)
        allows = _STREAMED.get(message.method)
        outbox = Outbox() if allows is not None and allows(headers) else None
        method, call = self._dispatcher.dispatch(
            era, message, headers=headers, caller=caller, outbox=outbox, noted=exchange.noted, trace=exchange.trace
        )
        exchange.reply_headers = call.reply_headers
        if outbox is None:
            return result_answer(message.id, await method(call))
        exchange.stream = self._stream_class(request, _STREAM_HEADERS, lasts=message.method == _LASTING)
        return result_answer(message.id, await converse(method(call), outbox, exchange.stream))

    def _check_source(self, request: web.BaseRequest, headers: Headers) -> Source:
        """From where it comes. Raises Failure for hosts and origins that may not call."""
        source = self._proxies.source(request.remote or "", headers)
        self._guard.check(headers, source, target_authority=_target_authority(request.raw_path))
        return source

    def _metadata(self, request: web.BaseRequest) -> web.Response | None:
        """Where clients get tokens, if it is that which is asked for. Raises Failure."""
        if self._resource is None or request.raw_path == PATH:
            return None
        described = self._resource.metadata_at(request.rel_url.raw_path)
        if described is None:
            return None
        if request.method not in ("GET", "HEAD"):
            raise refused(405, "Only GET is served here", headers={"Allow": "GET, HEAD"}, closes=True)
        self._check_source(request, Headers.read(request.headers, request.raw_headers))
        return web.Response(body=described, headers=JSON_HEADERS)

    def _read(self, body: bytes, headers: Headers, exchange: _Exchange) -> Request | Notification:
        try:
            message = read_message(body)
        except Failure as failure:
            exchange.request_id = failure.request_id
            raise
        if isinstance(message, Request):
            exchange.request_id = message.id
        self._journal.hear(exchange, message, headers)
        return message


def _target_authority(target: str) -> str | None:
    """The authority of an absolute request target."""
    if target.startswith("/") and not target.startswith("//"):
        return None
    return urlsplit(target).netloc or None


def _read_place(request: web.BaseRequest, headers: Headers) -> Place:
    """Where the request wants to go. Raises Failure 404, 405, 414 or 431."""
    if len(request.raw_path) > TARGET_BYTES:
        raise refused(414, "The URL is too long", closes=True)
    place = UNNAMED if request.raw_path == PATH else place_at(request.rel_url.raw_path)
    if place is None:
        raise nothing_here()
    if request.method != "POST":
        raise refused(405, "Only POST is served here", headers={"Allow": "POST"})
    if headers.size_bytes > HEADERS_BYTES:
        raise refused(431, "The header is too large", closes=True)
    return place


async def _succeed(exchange: _Exchange, result: tuple[bytes, ...] | None) -> web.StreamResponse:
    """A result as an answer; None is that of a notification."""
    exchange.outcome = "OK"
    if result is None:
        exchange.status = HTTPStatus.ACCEPTED
        return web.Response(status=exchange.status, headers=HEADERS)
    exchange.status = HTTPStatus.OK
    if exchange.stream is not None and exchange.stream.is_begun:
        return await exchange.stream.end(*result)
    if exchange.form is Form.EVENT_STREAM:
        return web.Response(body=event(*result), headers={**_STREAM_HEADERS, **exchange.reply_headers})
    head = head_of({**JSON_HEADERS, **exchange.reply_headers}) if exchange.reply_headers else _JSON_HEAD
    return Whole(head, *result)


def _refuse(exchange: _Exchange, failure: Failure) -> web.Response:
    """A failure as an answer: always JSON, but as an event where the client admits nothing else and all is well in HTTP."""
    status = HTTPStatus.OK if exchange.era is Era.LEGACY and not failure.is_of_http else failure.status
    exchange.outcome, exchange.status = str(failure.code), status
    body = failure.body(exchange.request_id)
    if exchange.form is Form.EVENT_STREAM and status == HTTPStatus.OK:
        return web.Response(body=event(body), headers=_STREAM_HEADERS)
    response = web.Response(body=body, status=status, headers={**JSON_HEADERS, **failure.headers})
    if failure.closes:
        response.force_close()
    return response
