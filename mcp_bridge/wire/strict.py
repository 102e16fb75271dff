"""JSON as a stranger sends it: read once, refused whenever two readers could read it differently.

Source: security checklist H19 and H20, cases 7, 8 and 10.
"""

import re
from typing import Any, Final

import msgspec

DEPTH: Final = 64
MEMBERS: Final = 10_000
DIGITS: Final = 640

_NESTING = bytes.maketrans(b"[]{}", b"()()")
_NO_MARKS = bytes(set(range(256)) - set(b"[{:"))
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{}:"'))
_DIGIT = re.compile(rb"[0-9]")
_DIGITS = re.compile(rb"[0-9]*")
_LONG_NUMBER = b"0" * (DIGITS + 1)
_ANY_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_DECODER: Final = msgspec.json.Decoder()


class Unreadable(Exception):  # noqa: N818 (it says what the bytes are)
    """The bytes are not JSON that everybody reads alike. `reason` is safe to show; `value` is what could be read."""

    def __init__(self, reason: str, value: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value


def parse(data: bytes) -> Any:
    """The value of `data`.

    Raises Unreadable for what is not UTF-8, not exactly one JSON value, has a lone surrogate, a number of more than
    640 digits or beyond a double, an object with the same member twice, more than 10,000 members in all, or more than
    64 levels.
    """
    try:
        value = _DECODER.decode(data)
    except RecursionError:
        raise Unreadable(f"nested deeper than {DEPTH} levels") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        raise Unreadable("not well-formed JSON in UTF-8, or a number out of range") from None
    marks = data.translate(None, _NO_MARKS)
    if marks.count(b"[") + marks.count(b"{") > DEPTH and not _is_shallow(_structure(data)):
        raise Unreadable(f"nested deeper than {DEPTH} levels", value)
    colons = marks.count(b":")
    # A colon outside a string is a member, one inside stays one, unless it was escaped: so a tree that is written with
    # as many colons has lost no member to another of the same name.
    if (colons and b"\\u003" in data) or colons != _count_colons(value) or colons > MEMBERS:
        _check_members(data, value)
    if _may_have_long_number(data) and _LONG_NUMBER in _outside_strings(_without_escapes(data)).translate(_ANY_DIGIT):
        raise Unreadable(f"a number of more than {DIGITS} digits", value)
    return value


def _count_colons(value: object) -> int:
    return msgspec.json.encode(value).count(b":") if isinstance(value, dict | list) else 0


def _check_members(data: bytes, value: object) -> None:
    members = _structure(data).count(b":")
    if members > MEMBERS:
        raise Unreadable(f"more than {MEMBERS} members", value)
    if members != _count_members(value):
        raise Unreadable("an object has the same member twice")


def _count_members(value: object) -> int:
    count, left = 0, [value]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            count += len(node)
            left += node.values()
        elif isinstance(node, list):
            left += node
    return count


def _structure(data: bytes) -> bytes:
    """The brackets and colons of well-formed JSON that stand outside strings.

    Two quotes side by side may go: whatever follows has as many before it, odd or even, as it had.
    """
    return _outside_strings(_without_escapes(data).translate(None, _NO_STRUCTURE).replace(b'""', b""))


def _without_escapes(data: bytes) -> bytes:
    """The same, so that each quote opens or closes a string."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data


def _outside_strings(data: bytes) -> bytes:
    """What is left without the strings, of JSON without escapes."""
    return b"".join(data.split(b'"')[::2])


def _is_shallow(structure: bytes) -> bool:
    """Whether nothing is nested deeper than allowed: each round takes away what is innermost."""
    brackets = structure.translate(_NESTING, b":")
    for _ in range(DEPTH):
        if not brackets:
            return True
        brackets = brackets.replace(b"()", b"")
    return not brackets


def _may_have_long_number(data: bytes) -> bool:
    """Whether there is a run of too many digits, in a string or not. Such a run covers one of the places looked at."""
    for place in range(DIGITS, len(data), DIGITS + 1):
        if _DIGIT.match(data, place):
            after = _DIGITS.match(data, place)
            before = data[max(0, place - DIGITS) : place]
            behind = len(before) - len(before.rstrip(b"0123456789"))
            if after is not None and after.end() - place + behind > DIGITS:
                return True
    return False
