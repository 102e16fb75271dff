"""Server-sent events."""

import re
from typing import Final

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment: it shows proxies that the stream lives, and no client sees it."""
_LINE_END = re.compile(rb"\r\n|\r|\n")


def event(data: bytes) -> bytes:
    """One event of the default type. Line ends in `data`, which JSON has between its tokens only, become line feeds."""
    return b"data: " + _LINE_END.sub(b"\ndata: ", data) + b"\n\n"
