"""What an operator sees: rows as text on a terminal or as JSON elsewhere, and how the work goes."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_CLEAR_LINE: Final = "\r\033[K"


class Display:
    """Writes what was asked for to standard output, and how it goes to standard error, there only on a terminal."""

    def __init__(self, *, as_json: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._as_json = as_json
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._is_drawn = False
        self._widths: list[int] = []

    def row(self, row: Mapping[str, Any], columns: Sequence[str]) -> None:
        """One of several: a line of JSON, or of a table that has these columns."""
        if self._as_json:
            self._line(json.dumps(row))
            return
        texts = [_text(row[column]) for column in columns]
        if not self._widths:
            self._widths = [max(len(name), len(text)) for name, text in zip(columns, texts, strict=True)]
            self._line(self._aligned([name.upper() for name in columns]))
        self._line(self._aligned(texts))

    def whole(self, row: Mapping[str, Any]) -> None:
        """All of one: a line of JSON, or a line for each thing that it has."""
        if self._as_json:
            self._line(json.dumps(row))
            return
        width = max(len(name) for name in row)
        for name, value in row.items():
            text = _text(value).rstrip("\n")
            self._line(f"{name:{width}}  " + text.replace("\n", "\n" + " " * (width + 2)))

    def progress(self, text: str) -> None:
        """How far it has come, on one line that is written over."""
        if self._err.isatty():
            self._err.write(_CLEAR_LINE + _safe(text))
            self._err.flush()
            self._is_drawn = True

    def trouble(self, text: str) -> None:
        """What went wrong, to standard error."""
        self.settle()
        self._err.write(f"tenure-store: {_safe(text)}\n")

    def settle(self) -> None:
        """Ends the line that is written over."""
        if self._is_drawn:
            self._err.write(_CLEAR_LINE)
            self._err.flush()
            self._is_drawn = False

    def _aligned(self, texts: Sequence[str]) -> str:
        return "  ".join(f"{text:{width}}" for text, width in zip(texts, self._widths, strict=True)).rstrip()

    def _line(self, text: str) -> None:
        self.settle()
        self._out.write((_safe(text) if self._out.isatty() else text) + "\n")
        self._out.flush()


def shown(message: Message) -> dict[str, Any]:
    """A message as an operator sees it: names of states, times of RFC 3339, digests in hexadecimal digits."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [_one(each, field) for each in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _one(value, field)


def _one(value: Any, field: Any) -> Any:
    match value:
        case Timestamp():
            return value.ToJsonString()
        case Message():
            return shown(value)
        case bytes() if field.name == "history":
            return value.decode()
        case bytes():
            return value.hex()
        case _ if field.enum_type is not None:
            prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
            return field.enum_type.values_by_number[value].name.removeprefix(prefix)
        case _:
            return value


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _safe(text: str) -> str:
    """Text of a stranger without what would steer the terminal."""
    return "".join(mark if mark.isprintable() or mark in "\n\t" else "\N{REPLACEMENT CHARACTER}" for mark in text)
