"""Values of user code to JSON bytes that the store takes, and back."""

import json
import re
from typing import Any, Final

import msgspec
from taskstore.v1 import types_pb2

from store_service.client.outcomes import INTERNAL_ERROR, ProtocolError

JSON: Final = "application/json"
MOST_BYTES: Final = 4 * 1024 * 1024
"""The most that a checkpoint or a result may have."""
MOST_DEPTH: Final = 64
MOST_DIGITS: Final = 640

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NOT_A_BRACKET: Final = bytes(set(range(256)) - set(b"[]{}"))
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (MOST_DIGITS + 1))


def to_json(what: str, value: Any, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The value as JSON bytes that the store takes. `what` begins the message of the error.

    Dataclasses, msgspec structs, dates, UUIDs, enums, sets and tuples become what JSON has for them. NaN and
    Infinity, deep nesting, long numbers and large values raise ProtocolError: trying again would not mend them.
    """
    try:
        # json.dumps, as msgspec writes NaN as null, which would alter the value in silence.
        text = json.dumps(msgspec.to_builtins(value, str_keys=True), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        data = text.encode()
    except RecursionError:
        raise _refused(what, f"is nested deeper than {MOST_DEPTH} levels") from None
    except UnicodeEncodeError:
        raise _refused(what, "has text that is not valid Unicode") from None
    except (TypeError, ValueError) as error:
        raise _refused(what, f"is not JSON: {error}") from None
    _check(what, data, most_bytes)
    return data


def from_json(what: str, payload: types_pb2.Payload) -> Any:
    """The value of a payload; the bytes themselves where they are not JSON. Raises ProtocolError."""
    if payload.media_type not in ("", JSON):
        return payload.data
    try:
        return msgspec.json.decode(payload.data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise _refused(what, "cannot be read as JSON") from None


def safe_text(text: str, *, most_bytes: int) -> str:
    """The text without what the store refuses in text, cut to its length between two characters."""
    cleaned = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace")
    return cleaned[:most_bytes].decode(errors="ignore")


def _check(what: str, data: bytes, most_bytes: int) -> None:
    if len(data) > most_bytes:
        raise _refused(what, f"is {len(data)} bytes of JSON, and at most {most_bytes} can be kept")
    is_deep = data.count(b"[") + data.count(b"{") > MOST_DEPTH
    is_long = _LONG_NUMBER.search(data) is not None
    if is_deep or is_long:
        bare = _STRING.sub(b"", data)
        if is_deep and _depth(bare) > MOST_DEPTH:
            raise _refused(what, f"is nested deeper than {MOST_DEPTH} levels")
        if is_long and _LONG_NUMBER.search(bare):
            raise _refused(what, f"has a number of more than {MOST_DIGITS} digits")


def _depth(bare: bytes) -> int:
    depth = deepest = 0
    for bracket in bare.translate(None, _NOT_A_BRACKET):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _refused(what: str, why: str) -> ProtocolError:
    return ProtocolError(INTERNAL_ERROR, f"{what} {why}")
