"""Floor 4: from a request to the method that answers it, in the era in which it was sent. Source: contract, section 10.5."""

from mcp_bridge.access.callers import Caller
from mcp_bridge.methods.calls import Call, Method, Outbox
from mcp_bridge.methods.legacy import session_of
from mcp_bridge.methods.table import Methods
from mcp_bridge.metrics import Metrics
from mcp_bridge.wire.failures import method_not_found, session_not_found
from mcp_bridge.wire.headers import Headers
from mcp_bridge.wire.inbound import SESSION_HEADER, VERSION_HEADER, Era, read_inbound
from mcp_bridge.wire.jsonrpc import Request
from mcp_bridge.wire.mcp import LEGACY_VERSIONS, Meta, read_legacy_meta
from mcp_bridge.wire.state import StateKeys


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
        headers: Headers,
        caller: Caller,
        outbox: Outbox | None,
        noted: dict[str, object],
    ) -> tuple[Method, Call]:
        """The method and what it is given. Raises Failure."""
        match era:
            case Era.MODERN:
                meta, method = self._read_modern(message, headers), self._methods.modern.get(message.method)
            case Era.LEGACY:
                meta, method = self._read_legacy(message, headers, caller), self._methods.legacy.get(message.method)
        if method is None:
            raise method_not_found()
        call = Call(
            caller=caller,
            params=message.params,
            body=message.body,
            meta=meta,
            headers=headers,
            outbox=outbox,
            noted=noted,
        )
        return method, call

    def _read_modern(self, message: Request, headers: Headers) -> Meta:
        inbound = read_inbound(message, headers, strict_headers=self._strict_headers)
        if inbound.name_is_missing:
            self._metrics.missing_names.inc()
        return inbound.meta

    def _read_legacy(self, message: Request, headers: Headers, caller: Caller) -> Meta:
        self._open_session(headers, caller)
        return read_legacy_meta(message.params, headers.one(VERSION_HEADER) or LEGACY_VERSIONS[0])

    def _open_session(self, headers: Headers, caller: Caller) -> bytes | None:
        """What tells the session from all others; None for a request without one. Raises Failure 404."""
        sessions = headers.all(SESSION_HEADER)
        if len(sessions) > 1:
            raise session_not_found()
        return self._keys.open_session(sessions[0], bound_to=session_of(caller)) if sessions else None
