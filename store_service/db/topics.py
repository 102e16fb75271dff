"""What hints are about: a digest for each thing, which says of which kind it is and no name."""

import base64
import hashlib
from typing import Final

ANY: Final = "*"
"""Anything at all; after a kind, anything of it."""
LANE: Final = "l"
TASK: Final = "t"
LEASE: Final = "s"
WORKER: Final = "w"
_MOST: Final = ((WORKER, 50), (LANE, 50), (TASK + LEASE, 600))
"""So many of these kinds are named, of 10 bytes each: a payload must be below 8,000."""


def lane_topic(lane: str) -> str:
    """The topic of work that became ready for a workflow and version."""
    return _topic(LANE, lane)


def task_topic(task_id: str) -> str:
    """The topic of a task's visible changes."""
    return _topic(TASK, task_id)


def lease_topic(task_id: str) -> str:
    """The topic of a worker's taking a task, which few want to know."""
    return _topic(LEASE, task_id)


def worker_topic(worker_id: str) -> str:
    """The topic of what a worker should learn about its leases."""
    return _topic(WORKER, worker_id)


def text_of(topics: set[str]) -> str:
    """What is sent of them, in one payload."""
    words: list[str] = []
    for kinds, most in _MOST:
        known = [topic for topic in topics if topic[0] in kinds]
        words += known if len(known) <= most else [kinds[0] + ANY]
    return " ".join(words)


def _topic(kind: str, name: str) -> str:
    return kind + base64.urlsafe_b64encode(hashlib.blake2s(name.encode(), digest_size=6).digest()).decode()
