"""The bounds of arguments, and fields as they travel. Source: store contract, section 1."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

Owner = tuple[str, str]
Answer = dict[str, Any]

MS: Final = 1_000
MIB: Final = 1024 * 1024
DAY_MS: Final = 86_400_000
YEARS: Final = 366 * DAY_MS
JSON: Final = "application/json"
CODES: Final = {
    "INVALID_INPUT": "INVALID_ARGUMENT", "TASK_NOT_FOUND": "NOT_FOUND", "CHECKPOINT_NOT_FOUND": "NOT_FOUND",
    "TENANT_NOT_FOUND": "NOT_FOUND", "TOMBSTONE_NOT_FOUND": "NOT_FOUND", "SIGNAL_NOT_FOUND": "NOT_FOUND",
    "REQUEST_ID_CONFLICT": "ALREADY_EXISTS", "SIGNAL_ID_CONFLICT": "ALREADY_EXISTS", "REVISION_CONFLICT": "ABORTED",
    "LEASE_LOST": "FAILED_PRECONDITION", "OUTSTANDING_LIMIT": "RESOURCE_EXHAUSTED", "CREATE_RATE": "RESOURCE_EXHAUSTED",
    "INPUT_TOO_LARGE": "INVALID_ARGUMENT",
}  # fmt: skip
"""Reasons and the gRPC codes that go with them."""


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
    return {name: value for name, value in fields.items() if value is not None and value not in ("", 0, [])}


def payload(media_type: str, data: bytes) -> Answer:
    """Bytes and what they are."""
    return lean(media_type=media_type or JSON) | ({"data": data} if data else {})


def is_name(value: str) -> bool:
    """An id of a tenant or worker, or a signal's name."""
    return re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", value) is not None


def is_text(value: str, most_bytes: int, *, blank: bool = False) -> bool:
    """A bounded text."""
    return len(value.encode()) <= most_bytes and "\0" not in value and (blank or bool(value.strip()))


def is_owner(owner: Owner) -> bool:
    """Both parts given."""
    return all(is_text(part, 512) for part in owner)


def is_id(value: str) -> bool:
    """A task's id in its canonical form."""
    return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", value) is not None


def is_payload(media_type: str, data: bytes, most_bytes: int) -> bool:
    """A bounded payload, well-formed where it is JSON."""
    return len(data) <= most_bytes and len(media_type.encode()) <= 128 and (media_type not in ("", JSON) or is_json(data))


def is_json(data: bytes) -> bool:
    """One value in UTF-8, at most 64 levels deep, its numbers finite."""

    def refuse(_: str) -> None:
        raise ValueError("no JSON number")

    try:
        parse: Callable[..., Any] = json.loads
        return _depth(parse(data.decode(), parse_constant=refuse)) <= 64
    except ValueError:
        return False


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)
