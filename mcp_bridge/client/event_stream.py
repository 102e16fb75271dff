"""Server-sent events, read as they come."""

import re

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class EventStreamError(ValueError):
    """An event is larger than is allowed."""


class EventReader:
    """Makes events of pieces of any size. Comments, event types and ids are passed over."""

    def __init__(self, *, event_bytes: int) -> None:
        self._event_bytes = event_bytes
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that is whole now. Raises EventStreamError."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                value = line[5:].removeprefix(b" ")
                self._data.append(value)
                self._size += len(value)
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if self._size + len(self._rest) > self._event_bytes:
            raise EventStreamError(f"an event is larger than {self._event_bytes} bytes")
        return events
