"""The one look at a payload: whether bytes that claim to be JSON are JSON that every reader can read.

It is looked at once, when it is written, so that whoever returns it later may lay it into an answer unparsed.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from store_service.model.limits import check_text
from store_service.model.refusals import invalid

JSON: Final = "application/json"
DEPTH: Final = 64
DIGITS: Final = 640

# Possessive, and content without an end: whatever the bytes, each is looked at once.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_A_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{%d}" % (DIGITS + 1))  # begun where a run begins: linear


@dataclass(frozen=True, slots=True)
class Payload:
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
    """Refuses what is not UTF-8, not one JSON value, nested deeper than 64, or has a number of over 640 digits."""
    try:
        data.decode()
        # A bound on brackets before the parser, as parsers recurse.
        deep = data.count(b"[") + data.count(b"{") > DEPTH
        long = _LONG_NUMBER.search(data) is not None
        if deep or long:
            bare = _STRING.sub(b"", data)
            if deep and _is_deep(bare):
                raise invalid(field, f"must not be nested deeper than {DEPTH} levels")
            if long and _LONG_NUMBER.search(bare):
                raise invalid(field, f"must not have numbers of more than {DIGITS} digits")
        msgspec.json.decode(data)
    except UnicodeDecodeError:
        raise invalid(field, "must be UTF-8") from None
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise invalid(field, "must be well-formed JSON") from None


def _is_deep(bare: bytes) -> bool:
    """Whether brackets are nested deeper than allowed. Each round takes away the innermost pairs, all at once."""
    brackets = bare.translate(_ONE_KIND, _NOT_A_BRACKET)
    if b"[" * (DEPTH + 1) in brackets:
        return True
    for _ in range(DEPTH):
        size = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == size:
            break
    return b"[]" in brackets or brackets.count(b"[") > DEPTH
