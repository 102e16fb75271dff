"""An encrypted way to the store, and who this process is to it: by a certificate, or by a token."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio

from store_service.watched_file import WatchedFile

_GRACE_SECONDS: Final = 60.0  # how long calls on the connection before may take once there is a new one


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files, each read anew when it changes, so that certificates and tokens rotate without a restart.

    - `ca`: the authorities that the store's certificate is checked against.
    - `certificate`, `key`: what this process shows; PEM.
    - `token`: instead of them, the file of a token, as Kubernetes projects one.
    - `server_name`: the name that the store's certificate must have, where it is not the address.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    token: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        if (self.certificate is None) == (self.token is None):
            raise ValueError("a certificate or a token, one of them")

    def files(self) -> WatchedFile[tuple[bytes, ...]]:
        """What a connection is made with."""
        paths = [path for path in (self.ca, self.certificate, self.key) if path is not None]
        return WatchedFile(*paths, read=_read_all)

    def credentials(self, files: Sequence[bytes]) -> grpc.ChannelCredentials:
        """The credentials of one connection."""
        ca, certificate, key = (*files, None, None)[:3]
        made = grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)
        if self.token is None:
            return made
        return grpc.composite_channel_credentials(made, grpc.metadata_call_credentials(_TokenFile(self.token)))

    def options(self) -> list[tuple[str, Any]]:
        """The options of one connection."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name is not None else []


class _TokenFile(grpc.AuthMetadataPlugin):
    """Shows the token of a file with each call."""

    def __init__(self, path: Path) -> None:
        self._token = WatchedFile(path, read=lambda path: path.read_text().strip())

    def __call__(self, _: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        callback((("authorization", f"Bearer {self._token.current()}"),), None)


def _read_all(*paths: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in paths)


def _asked(kind: str) -> Any:
    """A method of a channel, `unary_unary` and its like, that makes methods which are called on the channel of now."""

    def make(
        self: "_Renewing", method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            channel, methods = self.current()
            if (found := methods.get(method)) is None:
                found = getattr(channel, kind)(method, request_serializer, response_deserializer)
                methods[method] = found
            return found(*arguments, **named)

        return call

    return make


class _Renewing(ABC):
    """The channel of now: a new one once the files have changed. Calls under way end on the one that they began on."""

    def __init__(self, tls: Tls, open_one: Callable[[grpc.ChannelCredentials], Any]) -> None:
        self._tls, self._open = tls, open_one
        self._files = tls.files()
        self._version = self._files.version
        self._lock = threading.Lock()
        self._now: tuple[Any, dict[str, Any]] = open_one(tls.credentials(self._files.current())), {}

    unary_unary: Any = _asked("unary_unary")
    unary_stream: Any = _asked("unary_stream")
    stream_unary: Any = _asked("stream_unary")
    stream_stream: Any = _asked("stream_stream")

    def current(self) -> tuple[Any, dict[str, Any]]:
        """The channel, and the methods that were made of it."""
        files = self._files.current()
        if self._version != self._files.version:
            with self._lock:
                if self._version != self._files.version:
                    self._version = self._files.version
                    (before, _), self._now = self._now, (self._open(self._tls.credentials(files)), {})
                    self._retire(before)
        return self._now

    @abstractmethod
    def _retire(self, channel: Any) -> None:
        """Closes the channel before, once the calls on it have had time to end."""


class RenewedChannel(_Renewing, grpc.aio.Channel):
    """A channel for an event loop."""

    def __init__(self, tls: Tls, open_one: Callable[[grpc.ChannelCredentials], grpc.aio.Channel]) -> None:
        self._closing: set[asyncio.Task[None]] = set()
        super().__init__(tls, open_one)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """See `grpc.aio.Channel`."""
        await self._now[0].close(grace)
        for task in self._closing:
            task.cancel()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See `grpc.aio.Channel`."""
        state: grpc.ChannelConnectivity = self.current()[0].get_state(try_to_connect)
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See `grpc.aio.Channel`."""
        await self.current()[0].wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """See `grpc.aio.Channel`."""
        await self.current()[0].channel_ready()

    def _retire(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close(_GRACE_SECONDS))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class RenewedBlockingChannel(_Renewing, grpc.Channel):
    """A channel for threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """See `grpc.Channel`."""
        self._now[0].close()

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """See `grpc.Channel`."""
        self.current()[0].subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """See `grpc.Channel`."""
        self.current()[0].unsubscribe(callback)

    def _retire(self, channel: grpc.Channel) -> None:
        timer = threading.Timer(_GRACE_SECONDS, channel.close)
        timer.daemon = True
        timer.start()
