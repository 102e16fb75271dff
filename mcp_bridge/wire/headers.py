"""HTTP headers: what may be answered, what is sent, and whether they say the same as the body.

Source: contract, sections 1, 2 and 10.22; cases 12 and 15.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Protocol, Self

from mcp_bridge.wire.failures import header_mismatch, refused

_PREFIX: Final = "=?base64?"
_SUFFIX: Final = "?="
_PLAIN = re.compile(r"[\t\x20-\x7e]*")
_INTEGER = re.compile(r"-?[0-9]{1,640}(\.0{1,640})?")
_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
REMEMBERED: Final = 256
"""Values of a header of which it is remembered how they read: most clients send the same ones again and again."""


class Headers:
    """The header fields of one request, each with all its values. Names are case-insensitive, values are not."""

    __slots__ = ("_fields", "size_bytes")

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self._fields: _Fields = _Lists(fields)
        self.size_bytes = 0
        """As they were sent; 0 where they were not."""

    @classmethod
    def read(cls, fields: "_Fields", sent: Iterable[tuple[bytes, bytes]]) -> Self:
        """The fields as they were read from UTF-8, what is none escaped and no space around values; and as they were sent."""
        headers, whole = cls.__new__(cls), b"".join(chain.from_iterable(sent))
        headers._fields = fields if whole.isascii() else _Lists(fields.items())
        headers.size_bytes = len(whole)
        return headers

    def all(self, name: str) -> list[str]:
        """Every value of a field, in order."""
        return self._fields.getall(name, None) or []

    def one(self, name: str) -> str | None:
        """The field's value; None when it is absent. Raises Failure -32020 when it is there twice."""
        values = self._fields.getall(name, None)
        if values is None:
            return None
        if len(values) > 1:
            raise header_mismatch(f"{name} is there more than once")
        return values[0]


class _Fields(Protocol):
    """Fields by their names, in whatever case."""

    def getall(self, key: str, default: None, /) -> list[str] | None:
        """Every value of a field, in order."""

    def items(self) -> Iterable[tuple[str, str]]:
        """All fields with their values."""


class _Lists:
    """Fields in a dictionary."""

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name.lower(), []).append(_value(value))

    def getall(self, key: str, default: None, /) -> list[str] | None:
        """See _Fields."""
        return self._values.get(key.lower(), default)

    def items(self) -> Iterable[tuple[str, str]]:
        """See _Fields."""
        return ((name, value) for name, values in self._values.items() for value in values)


def _value(text: str) -> str:
    """A value as HTTP has it: a byte is a character."""
    if not text.isascii():
        text = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return text.strip(" \t")


def decode_value(name: str, value: str) -> str:
    """A mirrored value as it was before its client made a header of it. Raises Failure -32020."""
    if not _PLAIN.fullmatch(value):
        raise header_mismatch(f"{name} has characters that must be sent in base64")
    if not (value.startswith(_PREFIX) and value.endswith(_SUFFIX) and len(value) >= len(_PREFIX + _SUFFIX)):
        return value
    try:
        return base64.b64decode(value[len(_PREFIX) : -len(_SUFFIX)], validate=True).decode()
    except (binascii.Error, ValueError):
        raise header_mismatch(f"{name} is not valid base64 of UTF-8") from None


def check_mirror(headers: Headers, name: str, expected: str) -> None:
    """Raises Failure -32020 unless the field is there once and equals `expected` as it is."""
    value = headers.one(name)
    if value is None:
        raise header_mismatch(f"{name} is missing")
    if value != expected:
        raise header_mismatch(f"{name} differs from the body")


def check_name(headers: Headers, expected: str, *, may_miss: bool) -> bool:
    """Compares `Mcp-Name`, decoded. Returns whether it is there. Raises Failure -32020."""
    value = headers.one("Mcp-Name")
    if value is None:
        if may_miss:
            return False
        raise header_mismatch("Mcp-Name is missing")
    if decode_value("Mcp-Name", value) != expected:
        raise header_mismatch("Mcp-Name differs from the body")
    return True


def check_params(headers: Headers, mirrored: Mapping[str, tuple[str, ...]], arguments: Mapping[str, Any]) -> None:
    """Compares each `Mcp-Param-<X>` with the argument at its property path. Raises Failure -32020.

    `mirrored` maps X to that path. An argument that is absent or null has no header. Source: contract, section 10.22.
    """
    for suffix, path in mirrored.items():
        name = f"Mcp-Param-{suffix}"
        expected, value = _at(arguments, path), headers.one(name)
        if expected is None:
            if value is not None:
                raise header_mismatch(f"{name} is there, but its argument is not")
        elif value is None:
            raise header_mismatch(f"{name} is missing")
        elif not _equals(decode_value(name, value), expected):
            raise header_mismatch(f"{name} differs from its argument")


def _at(arguments: Mapping[str, Any], path: tuple[str, ...]) -> object:
    value: object = arguments
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def _equals(text: str, value: object) -> bool:
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    if isinstance(value, int):
        return _INTEGER.fullmatch(text) is not None and int(text.partition(".")[0]) == value
    if isinstance(value, float):  # an integer may be written 42.0
        return _INTEGER.fullmatch(text) is not None and Decimal(text) == Decimal(value)
    return isinstance(value, str) and text == value


class Form(Enum):
    """How a result is answered."""

    JSON = JSON
    EVENT_STREAM = EVENT_STREAM


def choose_form(headers: Headers) -> Form:
    """The form of the answer that the client accepts best, JSON where it can be. Raises Failure 406.

    No Accept at all, `*/*` and `application/*` are tolerated, `q=0` is honoured. Source: case 12.
    """
    values = headers.all("Accept")
    form = _best_form(",".join(values)) if values else Form.JSON
    if form is None:
        raise refused(406, f"Accept must admit {JSON} or {EVENT_STREAM}")
    return form


def accepts_stream(headers: Headers) -> bool:
    """Whether the client names server-sent events among what it accepts; `*/*` does not say that it can read them."""
    return (EVENT_STREAM, True) in _read_ranges(",".join(headers.all("Accept")))


def admits_stream(headers: Headers) -> bool:
    """Whether the client may be answered with server-sent events where there is no other answer."""
    ranges = _read_ranges(",".join(headers.all("Accept")))
    return not ranges or _accepts(ranges, EVENT_STREAM)


@lru_cache(maxsize=REMEMBERED)
def _best_form(accept: str) -> Form | None:
    ranges = _read_ranges(accept)
    return next((form for form in Form if _accepts(ranges, form.value)), None)


@lru_cache(maxsize=REMEMBERED)
def _read_ranges(accept: str) -> tuple[tuple[str, bool], ...]:
    return tuple(_read_range(text) for text in accept.split(",") if text.strip())


def _read_range(text: str) -> tuple[str, bool]:
    """One media range, and whether its quality is above 0."""
    media, *parameters = (part.strip().lower() for part in text.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return media, not (_QUALITY.fullmatch(value.strip()) and float(value) == 0)
    return media, True


def _accepts(ranges: tuple[tuple[str, bool], ...], media: str) -> bool:
    """Whether the most specific range that covers `media` wants it."""
    for candidate in (media, media.partition("/")[0] + "/*", "*/*"):
        wishes = [wanted for name, wanted in ranges if name == candidate]
        if wishes:
            return any(wishes)
    return False


def check_content(headers: Headers) -> None:
    """Raises Failure 415 unless the body is JSON in UTF-8 and not compressed. Source: H21, case 14."""
    types = headers.all("Content-Type")
    fault = f"Content-Type must be {JSON}" if len(types) != 1 else _content_fault(types[0])
    if fault is not None:
        raise refused(415, fault, closes=True)
    encodings = headers.all("Content-Encoding")
    if encodings and any(encoding.strip().lower() not in ("", "identity") for encoding in ",".join(encodings).split(",")):
        raise refused(415, "Content-Encoding must be identity", closes=True)


@lru_cache(maxsize=REMEMBERED)
def _content_fault(content_type: str) -> str | None:
    media, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if media != JSON:
        return f"Content-Type must be {JSON}"
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8"):
            return "the charset must be utf-8"
    return None
