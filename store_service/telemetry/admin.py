"""The port for probes and metrics, apart from the port that does the work."""

import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Readiness = Callable[[], str | None]
"""Tells why the process is not ready, or None when it is. Called from another thread; it must not block."""


class AdminServer:
    """Answers `/livez`, `/readyz` and `/metrics` from a thread of its own.

    A thread, because a process whose event loop or whose user code is busy is alive all the same. Liveness asks
    nothing; readiness asks `ready`.
    """

    def __init__(self, *, host: str, port: int, registry: CollectorRegistry, ready: Readiness) -> None:
        self._server = make_server(
            host,
            port,
            _application(registry, ready),
            server_class=_ThreadingServer,
            handler_class=_QuietHandler,
        )
        # `stop` waits for the end of a poll.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="admin", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on, which is a free one where 0 was asked for."""
        return self._server.server_port

    def start(self) -> None:
        """Starts to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stops to answer and gives the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds that a silent client may hold its thread

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (named by the base class)
        """Says nothing: probes are no events."""


def _application(registry: CollectorRegistry, ready: Readiness) -> "WSGIApplication":
    metrics = make_wsgi_app(registry)

    def application(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                page: Iterable[bytes] = metrics(environ, start_response)
                return page
            case "/livez":
                status, text = HTTPStatus.OK, "alive"
            case "/readyz":
                reason = ready()
                status, text = (HTTPStatus.OK, "ready") if reason is None else (HTTPStatus.SERVICE_UNAVAILABLE, reason)
            case _:
                status, text = HTTPStatus.NOT_FOUND, "try /livez, /readyz or /metrics"
        body = f"{text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return application
