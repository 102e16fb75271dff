"""The port for probes and metrics, apart from the port that does the work."""

import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
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
    nothing; readiness asks `ready`. It takes its port when it starts, and gives it back when it stops.
    """

    def __init__(self, *, host: str, port: int, registry: CollectorRegistry, ready: Readiness) -> None:
        self._address = host, port
        self._application = _application(registry, ready)
        self._running: tuple[WSGIServer, threading.Thread] | None = None

    @property
    def port(self) -> int:
        """The port it listens on, which is a free one where 0 was asked for."""
        assert self._running is not None, "it is not started"
        return self._running[0].server_port

    def start(self) -> None:
        """Starts to answer. One that runs is left as it is. Raises OSError when the port is taken."""
        if self._running is not None:
            return
        server = make_server(*self._address, self._application, server_class=_ThreadingServer, handler_class=_QuietHandler)
        # `stop` waits for the end of a poll.
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="admin", daemon=True)
        self._running = server, thread
        thread.start()

    def stop(self) -> None:
        """Stops to answer. One that does not run is left as it is."""
        if self._running is None:
            return
        server, thread = self._running
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
        self._running = None


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Takes its port, and asks no name server what it is called: that may take long, and whoever starts waits."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


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
