"""What clients did and what they were told, one line of JSON a call: the history that the checker reads."""

import hashlib
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

OK: Final = "ok"
UNKNOWN: Final = "unknown"
"""Nobody knows whether it was done: it may have been, may yet be, or never."""


class Call(msgspec.Struct, omit_defaults=True):
    """One operation of one client on one task, or on none."""

    client: str
    op: str
    outcome: str
    """`ok`, `unknown`, or the reason of a refusal."""
    invoked: int
    """Microseconds since 1970, before it was sent."""
    returned: int
    tenant: str = ""
    task: str = ""
    detail: dict[str, Any] = {}


def now_us() -> int:
    """The clock of this machine, which is that of its Postgres too."""
    return time.time_ns() // 1000


def digest(data: bytes) -> str:
    """Stands for a payload, which is written nowhere."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class History:
    """Writes calls as they end, and counts them."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 20)
        self._encoder = msgspec.json.Encoder()
        self.counts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.foreign: list[str] = []
        """Who was told another tenant's secrets."""

    @property
    def operations(self) -> int:
        """How many there were, whatever came of them."""
        return sum(self.counts.values())

    def add(self, call: Call) -> None:
        """Keeps one."""
        self.counts[call.op] += 1
        self.outcomes[call.outcome] += 1
        self._file.write(self._encoder.encode(call) + b"\n")

    def close(self) -> None:
        """No more."""
        self._file.close()

    def look_over(self, client: str, tenant: str, data: bytes) -> None:
        """What a client of a tenant receives has no other tenant's canary (S12)."""
        at = data.find(b"canary-")
        while at >= 0:
            if not data.startswith(tenant.encode() + b".", at + 7):
                self.foreign.append(f"S12 {client} of {tenant} received {data[at : at + 30]!r}")
            at = data.find(b"canary-", at + 7)


def read_history(path: Path) -> list[Call]:
    """All calls of a run, in the order in which they ended."""
    decoder = msgspec.json.Decoder(Call)
    with path.open("rb") as lines:
        return [decoder.decode(line) for line in lines]
