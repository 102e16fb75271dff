"""The bounds of arguments, and fields as they travel. Source: store contract, section 1."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

Owner = tuple[str, str]
Answer = dict[str, Any]

MS: Final = 1_000
KIB: Final = 1024
MIB: Final = 1024 * 1024
DAY_MS: Final = 86_400_000
YEARS: Final = 366 * DAY_MS
INT31: Final = range(2**31)
TIMES: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
"""Microseconds since 1970 of the years 1 to 9999."""
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a store is told, or what is made so small that it is met."""

    cancel_grace_ms: int
    max_crashes: int
    questions: int
    signals: int
    checkpoints: int
    checkpoint_bytes: int
    pauses: int
    answer_bytes: int


class Refused(Exception):  # noqa: N818 (an answer, as the store's own)
    """The operation was refused for this reason."""


def check(holds: bool) -> None:
    """An argument keeps its rule."""
    if not holds:
        raise Refused("INVALID_INPUT")


def check_choice(holds: bool) -> None:
    """The store chose something that it was free to choose."""
    assert holds, "the store made a choice that the contract does not leave to it"


def lean(**fields: Any) -> Answer:
    """Fields as they travel: what is empty is left out."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", 0, b"", [])}


def payload(media_type: str, data: bytes) -> Answer:
    """Bytes and what they are."""
    return lean(media_type=media_type or JSON, data=data)


def page(rows: Sequence[Any], size: int) -> list[Any]:
    """The first of them."""
    return list(rows[: size or 100])


def is_name(value: str) -> bool:
    """An id of a tenant or worker, or a signal's name."""
    return re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", value) is not None


def is_text(value: str, most_bytes: int, *, blank: bool = False) -> bool:
    """A bounded text."""
    return len(value.encode()) <= most_bytes and "\0" not in value and (blank or bool(value.strip()))


def is_owner(owner: Owner | None) -> bool:
    """None, or both parts given."""
    return owner is None or all(is_text(part, 512) for part in owner)


def is_id(value: str) -> bool:
    """A task's id in its canonical form."""
    return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", value) is not None


def is_payload(media_type: str, data: bytes, most_bytes: int) -> bool:
    """A bounded payload, well-formed where it is JSON."""
    return (
        len(data) <= most_bytes and is_text(media_type or JSON, 128) and (media_type not in ("", JSON) or is_json(data))
    )  # fmt: skip


def is_json(data: bytes) -> bool:
    """One value in UTF-8, at most 64 levels deep, its numbers finite and of at most 640 digits."""
    parse: Callable[..., Any] = json.loads
    try:
        value = parse(data.decode(), parse_constant=_finite, parse_float=_finite, parse_int=_short)
    except ValueError:
        return False
    return _depth(value) <= 64


def _finite(text: str) -> int:
    if not math.isfinite(float(text)):
        raise ValueError("no number of JSON")
    return _short(text)


def _short(text: str) -> int:
    if max(map(len, re.findall(r"[0-9]+", text))) > 640:
        raise ValueError("too many digits")
    return 0


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)
