"""Server-sent events."""

import re
from collections.abc import Iterable
from typing import Final

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment: it shows proxies that the stream lives, and no client sees it."""
_LINE_END = re.compile(rb"\r\n|\r|\n")


def event(*data: bytes) -> bytes:
    """One event of the default type. Line ends in `data`, which JSON has between its tokens only, become line feeds."""
    return b"".join(event_pieces(data))


def event_pieces(data: Iterable[bytes]) -> list[bytes]:
    """The event that carries `data`, given in pieces, in pieces: those without line ends are not copied."""
    return [b"data: ", *(_LINE_END.sub(b"\ndata: ", piece) for piece in data), b"\n\n"]
