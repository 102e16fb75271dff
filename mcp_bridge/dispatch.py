"""Floor 4: from a request to the method that answers it, in the era in which it was sent. Source: contract, section 10.5."""

import structlog

from mcp_bridge.access.callers import Caller
from mcp_bridge.methods.calls import Call, Method, Outbox
from mcp_bridge.methods.legacy import session_of
from mcp_bridge.methods.table import Methods
from mcp_bridge.metrics import Metrics
from mcp_bridge.wire.digests import call_reference
from mcp_bridge.wire.failures import Failure, method_not_found, session_not_found
from mcp_bridge.wire.headers import Headers
from mcp_bridge.wire.inbound import SESSION_HEADER, VERSION_HEADER, Era, read_inbound
from mcp_bridge.wire.jsonrpc import Notification, Request, is_request_id
from mcp_bridge.wire.mcp import CANCELLED, LEGACY_VERSIONS, Meta, read_legacy_meta
from mcp_bridge.wire.state import StateKeys
from mcp_bridge.wire.trace import TraceContext
from store_service.client import StoreError

REASON_CHARACTERS = 200


def tell_reason(cancelled: Notification) -> None:
    """Logs why a client cancelled."""
    if isinstance(reason := cancelled.params.get("reason"), str):
        structlog.get_logger().debug("cancel_asked", reason=reason[:REASON_CHARACTERS])


class Dispatcher:
    """Knows which method answers, once it has read what a request says about itself."""

    def __init__(self, methods: Methods, keys: StateKeys, metrics: Metrics, *, strict_headers: bool) -> None:
        self._methods = methods
        self._keys = keys
        self._metrics = metrics
        self._strict_headers = strict_headers

    def dispatch(
        self,
        era: Era,
        message: Request,
        *,
        headers: Headers | None,
        caller: Caller,
        outbox: Outbox | None,
        noted: dict[str, object],
        trace: TraceContext | None = None,
    ) -> tuple[Method, Call]:
        """The method and what it is given; `headers` is None where the transport has none, `trace` where the call has no span.
        Raises Failure."""
        session = None
        match era:
            case Era.MODERN:
                meta, methods = self._read_modern(message, headers), self._methods.modern
            case Era.LEGACY:
                session = None if headers is None else self._open_session(headers, caller)
                meta = read_legacy_meta(message.params)
                methods = self._methods.legacy
        method = methods.get(message.method)
        if method is None:
            raise method_not_found()
        call = Call(
            caller=caller,
            request_id=message.id,
            params=message.params,
            body=message.body,
            meta=meta,
            headers=headers,
            outbox=outbox,
            reference=call_reference(session, message.id) if session else "",
            noted=noted,
            trace=trace,
        )
        return method, call

    async def hear(self, message: Notification, *, headers: Headers, caller: Caller) -> None:
        """Does what a notification asks for: only `notifications/cancelled` of an earlier client asks for anything. One that
        cannot be done is dropped like all others, as nobody would read why."""
        request_id = message.params.get("requestId")
        is_legacy = any(version in LEGACY_VERSIONS for version in headers.all(VERSION_HEADER))
        if message.method != CANCELLED or not is_legacy or not is_request_id(request_id):
            return
        tell_reason(message)
        try:
            if session := self._open_session(headers, caller):
                await self._methods.cancel_legacy_call(caller, call_reference(session, request_id))
        except (Failure, StoreError) as error:
            structlog.get_logger().warning("cancel_not_done", error=str(error))

    def _read_modern(self, message: Request, headers: Headers | None) -> Meta:
        inbound = read_inbound(message, headers, strict_headers=self._strict_headers)
        if inbound.name_is_missing:
            self._metrics.missing_names.inc()
        return inbound.meta

    def _open_session(self, headers: Headers, caller: Caller) -> bytes | None:
        """What tells the session from all others; None for a request without one. Raises Failure 404."""
        sessions = headers.all(SESSION_HEADER)
        if len(sessions) > 1:
            raise session_not_found()
        return self._keys.open_session(sessions[0], bound_to=session_of(caller)) if sessions else None
