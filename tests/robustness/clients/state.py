"""What the clients of a run share: what they made, what they were told, and how fast they go."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Final

from tests.robustness.history import UNKNOWN, Call, History, now_us

GRPC_TENANTS: Final = ("alfa", "beta", "gamma", "delta")
REMOVED_TENANT: Final = "delta"
"""Its tasks are removed as soon as they have ended and their handles too."""
MCP_TENANT: Final = "dev"
LIVE_LIMIT: Final = 300
"""So many tasks are under way at most, that what was begun can also be ended."""


@dataclass(slots=True)
class Known:
    """A task of which a client was told."""

    tenant: str
    task: str
    workflow: str
    is_over: bool = False
    asks: bool = False


@dataclass
class Shared:
    """The clients' common ground."""

    history: History
    pace_per_second: float
    most_tasks: int
    known: list[Known] = field(default_factory=list)
    created: int = 0
    over: int = 0
    creating: int = 0
    is_quiet: bool = False
    """No new work is made."""
    is_over: bool = False
    started: float = field(default_factory=time.monotonic)
    paused_seconds: float = 0.0
    wanted: list[str] = field(default_factory=list)
    """Workflows that the next tasks are to be of."""

    @property
    def live(self) -> int:
        """Tasks that were made and not seen to have ended."""
        return len(self.known) - self.over

    def may_create(self) -> bool:
        """Whether there is room for more work."""
        return not self.is_quiet and self.live + self.creating < LIVE_LIMIT and self.created < self.most_tasks

    async def pace(self) -> None:
        """Waits while the clients are ahead of their pace; a little in any case, that others may go on."""
        ahead = self.history.operations - self.pace_per_second * (time.monotonic() - self.started)
        await asyncio.sleep(min(0.5, max(0.005, ahead / self.pace_per_second)))

    def made(self, tenant: str, task: str, workflow: str) -> Known:
        """A task is there."""
        known = Known(tenant, task, workflow)
        self.known.append(known)
        self.created += 1
        return known

    def ended(self, known: Known) -> None:
        """It was seen to have ended."""
        if not known.is_over:
            known.is_over = True
            self.over += 1

    def some(self, draw: random.Random, tenant: str, count: int) -> list[Known]:
        """Some tasks of a tenant: mostly those that are young, which is where things happen."""
        recent = [known for known in self.known[-2_000:] if known.tenant == tenant]
        if len(recent) <= count:
            return recent
        living = [known for known in recent if not known.is_over]
        wanted = living[: count * 3 // 4] if len(living) > count else living[:count]
        rest = draw.sample(recent, count - len(wanted))
        return list({id(known): known for known in (*wanted, *rest)}.values())


class Client:
    """One client: its name, its own random numbers, and its calls in the history."""

    def __init__(self, name: str, shared: Shared, seed: int) -> None:
        self.name = name
        self.shared = shared
        self.draw = random.Random(f"{seed}/{name}")
        self._ids = 0

    def new_id(self) -> str:
        """An id that nobody else uses."""
        self._ids += 1
        return f"{self.name}-{self._ids}"

    def note(self, op: str, invoked: int, outcome: str, *, tenant: str = "", task: str = "", **detail: object) -> None:
        """Writes a call down."""
        self.shared.history.add(Call(self.name, op, outcome, invoked, now_us(), tenant, task, dict(detail)))

    async def run(self) -> None:
        """Goes on until the run is over."""
        while not self.shared.is_over:
            await self.act()
            await self.shared.pace()

    async def act(self) -> None:
        """Does one thing."""
        raise NotImplementedError


__all__ = ["GRPC_TENANTS", "LIVE_LIMIT", "MCP_TENANT", "REMOVED_TENANT", "UNKNOWN", "Client", "Known", "Shared"]
