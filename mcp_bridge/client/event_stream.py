"""Server-sent events, read as they come."""


class EventStreamError(ValueError):
    """An event is larger than is allowed."""


class EventReader:
    """Makes events of pieces of any size. Comments, event types and ids are passed over. Each byte is looked at once, however
    small the pieces are."""

    def __init__(self, *, event_bytes: int) -> None:
        self._event_bytes = event_bytes
        self._line = bytearray()
        """What there is of a line that has not ended."""
        self._data: list[bytes] = []
        self._size = 0
        self._is_after_return = False
        """Whether a line feed that comes next belongs to an end of line that was seen already."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that is whole now, but of those that have none. Raises EventStreamError."""
        if not piece:
            return []
        if self._is_after_return:
            piece = piece.removeprefix(b"\n")
        self._is_after_return = piece.endswith(b"\r")
        events = []
        *ended, rest = (piece + b".").splitlines()  # the mark keeps what has ended apart from what has not
        for end in ended:
            self._line += end
            if self._line.startswith(b"data:"):
                value = bytes(self._line[5:]).removeprefix(b" ")
                self._data.append(value)
                self._size += len(value) + 1
            elif not self._line:
                if event := b"\n".join(self._data):
                    events.append(event)
                self._data, self._size = [], 0
            self._line.clear()
        self._line += rest[:-1]
        if self._size + len(self._line) > self._event_bytes:
            raise EventStreamError(f"an event is larger than {self._event_bytes} bytes")
        return events
