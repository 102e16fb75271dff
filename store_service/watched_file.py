"""Files that change while a process runs: certificates, tokens, policies."""

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

Value = TypeVar("Value")

_LOOK_SECONDS: Final = 1.0  # how often a file is looked at, at most


class WatchedFile(Generic[Value]):
    """What files say, read anew when one of them has changed. What was read before stays while the new cannot be used.

    Safe from any thread. The first reading raises what `read` raises; later ones log it.
    """

    def __init__(self, *paths: Path, read: Callable[..., Value]) -> None:
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()
        self._looked_at = time.monotonic()
        self._seen = self._stamp()
        self._value = read(*paths)
        self.version = 0
        """How often it has changed."""
        self._is_read = True

    def current(self) -> Value:
        """What the files say now."""
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            with self._lock:
                self._look()
        return self._value

    def is_read(self) -> bool:
        """Whether what is current is what the files say, and not what was read before they could not be used."""
        self.current()
        return self._is_read

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        stamp = self._stamp()
        if stamp == self._seen:
            return
        try:
            self._value = self._read(*self._paths)
        except Exception as error:  # noqa: BLE001 (whatever is wrong with the new, the old is used)
            self._is_read = False
            structlog.get_logger().error("file_not_used", paths=[str(path) for path in self._paths], error=str(error))
        else:
            self._is_read = True
            self.version += 1
            structlog.get_logger().info("file_read_anew", paths=[str(path) for path in self._paths])
        self._seen = stamp

    def _stamp(self) -> tuple[bytes, ...]:
        """What is in them, as two changes within a tick of a file system's clock leave no other trace."""
        return tuple(map(_digest, self._paths))


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b""
