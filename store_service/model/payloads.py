"""The one look at a payload: whether bytes that claim to be JSON are JSON that every reader can read.

It is looked at once, when it is written, so that whoever returns it later may lay it into an answer unparsed.
"""

from typing import Final

import msgspec

from store_service.model.limits import check_text
from store_service.model.refusals import invalid

JSON: Final = "application/json"
DEPTH: Final = 64
DIGITS: Final = 640

# Every look is a pass in C over all bytes: a payload of 4 MiB holds up the event loop for as long as it takes.
_NOT_QUOTES_OR_BRACKETS: Final = bytes(set(range(256)) - set(b'"[]{}'))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
# What a number looks like: each digit a 0, each exponent an e. All but quotes is blank.
_SHAPE: Final = bytes(
    ord("0") if byte in b"0123456789" else ord("e") if byte in b"eE" else byte if byte in b'"+' else ord(" ")
    for byte in range(256)
)
_TOO_LONG: Final = b"0" * (DIGITS + 1)
# A number without any of these is below 1e300, and so within what readers have for numbers.
_PERHAPS_TOO_LARGE: Final = (b"0" * 200, b"0e000", b"0e+000")
_SKIPPING: Final = msgspec.json.Decoder(msgspec.Raw)
"""It checks all, and makes no values. It alone leaves numbers of any size and texts that are not UTF-8."""


class Payload(msgspec.Struct, frozen=True, gc=False):
    """Exact bytes and what they are."""

    media_type: str
    data: bytes


def check_payload(field: str, media_type: str, data: bytes, *, most_bytes: int) -> Payload:
    """A payload within its size, and well-formed where it is JSON."""
    media_type = check_text(f"{field}.media_type", media_type or JSON, most_bytes=128)
    if len(data) > most_bytes:
        raise invalid(f"{field}.data", f"must be at most {most_bytes} bytes, not {len(data)}")
    if media_type == JSON:
        check_json(f"{field}.data", data)
    return Payload(media_type, data)


def check_json(field: str, data: bytes) -> None:
    """Refuses what is not UTF-8, not one JSON value, nested deeper than 64, or has a number of over 640 digits or beyond the
    range of doubles."""
    try:
        data.decode()
        # A bound on brackets before the parser, as parsers recurse.
        is_deep = data.count(b"[") + data.count(b"{") > DEPTH
        is_large = _may_be_large(data.translate(_SHAPE))
        if is_deep or is_large:
            unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
            if is_deep and _is_deep(_without_texts(unescaped.translate(None, _NOT_QUOTES_OR_BRACKETS))):
                raise invalid(field, f"must not be nested deeper than {DEPTH} levels")
            numbers = _without_texts(unescaped.translate(_SHAPE)) if is_large else b""
            if _TOO_LONG in numbers:
                raise invalid(field, f"must not have numbers of more than {DIGITS} digits")
            is_large = _may_be_large(numbers)
        if is_large:
            msgspec.json.decode(data)
        else:
            _SKIPPING.decode(data)
    except UnicodeDecodeError:
        raise invalid(field, "must be UTF-8") from None
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise invalid(field, "must be well-formed JSON") from None


def _may_be_large(shape: bytes) -> bool:
    return any(map(shape.__contains__, _PERHAPS_TOO_LARGE))


def _without_texts(unescaped: bytes) -> bytes:
    """What stands outside of quotes. Of two that touch, both may go: what is outside stays outside."""
    return b"".join(unescaped.replace(b'""', b"").split(b'"')[::2])


def _is_deep(bare: bytes) -> bool:
    """Whether brackets are nested deeper than allowed. Each round takes away the innermost pairs, all at once."""
    brackets = bare.translate(_ONE_KIND)
    if b"[" * (DEPTH + 1) in brackets:
        return True
    for _ in range(DEPTH):
        size = len(brackets)
        brackets = brackets.replace(b"[]" * 32, b"[]").replace(b"[]", b"")  # of many side by side, one is as deep
        if len(brackets) == size:
            break
    return b"[]" in brackets or brackets.count(b"[") > DEPTH
