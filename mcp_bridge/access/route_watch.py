"""The route file of a running bridge: read again when it changes, and when an operator says so.

It is looked at ten times a second: one `stat` costs a few microseconds, and sees whatever puts another file there, an editor,
a rename, or the symbolic links that Kubernetes swaps for a ConfigMap, on every file system. Being told of changes by the
kernel needs a watch on each folder that a link leads through, and a look at the content all the same.
"""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from mcp_bridge.access.config_files import read_file
from mcp_bridge.access.routes import CurrentRoutes, Routes
from mcp_bridge.metrics import Metrics

LOOK_SECONDS: Final = 0.1
SURE_SECONDS: Final = 2.0
"""How long after a change the content itself is compared: a second change in the same tick of the file system's clock leaves
no other trace."""
_MOST_PROBLEMS: Final = 20

Read = Callable[[bytes], Routes]
"""Makes routes of the file's content. Raises ConfigFileError."""
Changed = Callable[[Routes, Routes], None]
"""Is told of the routes before and after."""


class RouteWatch:
    """Keeps the current routes as the file has them. A file that is wrong changes nothing."""

    def __init__(
        self, path: str, data: bytes, *, read: Read, current: CurrentRoutes, changed: Changed, metrics: Metrics
    ) -> None:
        """`data` is what the current routes were read from."""
        self._path = path
        self._read = read
        self._current = current
        self._changed = changed
        self._metrics = metrics
        self._digest = _digest(data)
        self._trouble = ""
        self._asked = asyncio.Event()

    def reload_soon(self) -> None:
        """Lets the file be read again, changed or not."""
        self._asked.set()

    async def run(self) -> None:
        """Reads the file again whenever it changed or was asked for, for ever."""
        looked_at = before = await asyncio.to_thread(_mark, self._path)
        sure_at = time.monotonic() + SURE_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._asked.wait()
            mark = await asyncio.to_thread(_mark, self._path)
            if self._asked.is_set():
                self._asked.clear()
                looked_at = before = mark
                await self._load(is_asked=True)
            elif mark != before:  # it may be half written
                before, sure_at = mark, time.monotonic() + SURE_SECONDS
            elif mark != looked_at or time.monotonic() < sure_at:
                looked_at = mark
                await self._load(is_asked=False)

    async def _load(self, *, is_asked: bool) -> None:
        """Takes the file's content for the current routes, if it is right, and other than before or asked for."""
        try:
            data = await asyncio.to_thread(read_file, self._path)
            if not is_asked and _digest(data) == self._digest:
                return
            self._digest = _digest(data)
            routes = await asyncio.to_thread(self._read, data)
        except Exception as error:  # noqa: BLE001 (whatever is wrong with it, the old routes stay)
            if is_asked or str(error) != self._trouble:
                self._metrics.route_reloads.labels("refused").inc()
                problems = str(error).splitlines()[:_MOST_PROBLEMS]
                structlog.get_logger().error("routes_refused", path=self._path, problems=problems)
            self._trouble = str(error)
            return
        self._trouble = ""
        before, self._current.now = self._current.now, routes
        self._metrics.route_reloads.labels("applied").inc()
        structlog.get_logger().info("routes_applied", path=self._path)
        self._changed(before, routes)


def _mark(path: str) -> tuple[int, ...] | None:
    """What changes with the file, whatever puts another there; None if there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
