"""The bounds of everything a caller may send, and the checks that hold them. Source: store contract, section 1."""

import re
from typing import Final

from store_service.model.refusals import invalid

MIB: Final = 1024 * 1024

INPUT_BYTES: Final = 1 * MIB
CHECKPOINT_BYTES: Final = 4 * MIB
RESULT_BYTES: Final = 4 * MIB
ERROR_DATA_BYTES: Final = 64 * 1024
CAPABILITIES_BYTES: Final = 64 * 1024
OUTPUT_SCHEMA_BYTES: Final = 256 * 1024
ANSWER_BYTES: Final = 4 * MIB
"""How many bytes of payloads one answer carries."""
MESSAGE_BYTES: Final = 6 * MIB
"""The largest gRPC message, in either direction."""

QUESTION_BYTES: Final = 64 * 1024
ANSWERED_BYTES: Final = 255 * 1024
"""So much that the answers of one wait fit into one checkpoint."""
SIGNAL_BYTES: Final = 1 * MIB

QUESTIONS_PER_WAIT: Final = 16
QUESTIONS_PER_TASK: Final = 1_000
ANSWERS_PER_CALL: Final = 100
PENDING_SIGNALS_PER_TASK: Final = 1_000
CHECKPOINTS_PER_TASK: Final = 10_000
CHECKPOINT_BYTES_PER_TASK: Final = 64 * MIB
BATCH_ITEMS: Final = 500
WATCHED_TASKS: Final = 50_000
"""On one stream."""
PAUSES_PER_TENANT: Final = 200
HISTORY_PAGE: Final = 256
LIST_PAGE: Final = 1_000

LEASE_MS: Final = range(1_000, 900_000 + 1)
WAIT_MS: Final = range(60_000 + 1)
DELAY_MS: Final = range(86_400_000 + 1)
TTL_MS: Final = range(1, 10 * 366 * 86_400_000)
POLL_MS: Final = range(1, 3_600_000 + 1)
DEADLINE_MS: Final = range(366 * 86_400_000)
RETENTION_MS: Final = range(86_400_000, 100 * 366 * 86_400_000)
WINDOW_MS: Final = range(1, 10 * 366 * 86_400_000)
BUDGET_AMOUNT: Final = range(10**15 + 1)
INT32: Final = range(-(2**31), 2**31)

DEFAULT_TTL_MS: Final = 86_400_000
DEFAULT_POLL_MS: Final = 1_000

_TASK_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def check_name(field: str, value: str) -> str:
    """An id of a tenant or a worker: 1 to 128 of `A-Z a-z 0-9 _ - .`."""
    if not _NAME.fullmatch(value):
        raise invalid(field, "must be 1 to 128 of the characters A-Z a-z 0-9 _ - .")
    return value


def check_text(field: str, value: str, *, most_bytes: int, blank: bool = False) -> str:
    """A bounded text without U+0000; not blank unless `blank`."""
    if len(value) > most_bytes or (not value.isascii() and len(value.encode()) > most_bytes):
        raise invalid(field, f"must be at most {most_bytes} bytes")
    if "\0" in value:
        raise invalid(field, "must not contain U+0000")
    if not blank and not value.strip():
        raise invalid(field, "must not be empty or blank")
    return value


def check_line(field: str, value: str, *, most_bytes: int) -> str:
    """A bounded text without control characters, not blank."""
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise invalid(field, "must not contain control characters")
    return check_text(field, value, most_bytes=most_bytes)


def check_range(field: str, value: int, allowed: range) -> int:
    """A whole number within bounds."""
    if value not in allowed:
        raise invalid(field, f"must be {allowed.start} to {allowed.stop - 1}")
    return value


def check_page(field: str, value: int, *, most: int, default: int = 100) -> int:
    """A page size, where 0 means the default."""
    return check_range(field, value or default, range(1, most + 1))


def check_task_id(field: str, value: str) -> str:
    """A task's id: a UUID in its canonical text form."""
    if not _TASK_ID.fullmatch(value):
        raise invalid(field, "must be a UUID in its canonical form")
    return value
