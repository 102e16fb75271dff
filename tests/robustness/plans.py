"""How much of what goes wrong in a run of which length."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tests.robustness.nemesis import CRASH, FAILOVER
from tests.robustness.surroundings import BOUNCER, CODE, DISK, POOL, ROLL


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to have at least, and how long it goes on."""

    name: str
    seconds: float
    faults: Mapping[str, int]
    """So many in `seconds`; in a run of another length, as many in proportion."""
    operations: int
    """At least so many, in `seconds`."""
    pace_per_second: float
    """What the clients keep to."""
    most_tasks: int
    callers: int
    lessees: int
    mcp_clients: int
    brisk_clients: int
    """Pairs of a caller and a lessee that only make much of little work, and end it."""
    stretch_seconds: float
    """Faults go on so long, then all must come to rest."""
    quiet_seconds: float = 120.0
    """Within so long after the last fault every task has ended, also on a machine that is busy with other things."""
    hard: Mapping[str, int]
    """What the report must show to be taken for such a run, in `seconds`: operations, tasks, kills, pauses, cuts, ..."""

    def behind_pgbouncer(self) -> "Plan":
        """The same, with a PgBouncer between stores and Postgres, which is restarted as well."""
        return replace(self, faults={**self.faults, BOUNCER: max(3, round(self.seconds / 180))})

    def scaled(self, seconds: float) -> dict[str, int]:
        """The faults of a run of this length: at least one of each kind."""
        return {kind: max(1, round(count * seconds / self.seconds)) for kind, count in self.faults.items()}


PLANS: Final = {
    "smoke": Plan(
        name="smoke", seconds=90,
        faults={
            "kill": 12, "pause": 7, "cut": 8, CRASH: 1, "backends": 2, "listen": 1, "locks": 1, "clock": 2, POOL: 1, CODE: 1,
            "point": 20,
        },
        operations=20_000, pace_per_second=330, most_tasks=6_000, callers=5, lessees=2, mcp_clients=3,
        brisk_clients=0, stretch_seconds=90,
        hard={"operations": 20_000, "kills": 10, "pauses": 5, "cuts": 5, "points": 4},
    ),
    "soak": Plan(
        name="soak", seconds=3600,
        faults={
            "kill": 280, "pause": 150, "cut": 190, CRASH: 22, FAILOVER: 7, "backends": 60, "listen": 20, "locks": 20,
            "snapshot": 6, "clock": 30, POOL: 15, CODE: 20, DISK: 6, ROLL: 12, "point": 720,
        },
        operations=500_000, pace_per_second=220, most_tasks=200_000, callers=5, lessees=2, mcp_clients=3,
        brisk_clients=1, stretch_seconds=600,
        hard={
            "operations": 500_000, "tasks": 25_000, "kills": 200, "pauses": 100, "cuts": 100, "crashes": 15, "failovers": 5,
            "clocks": 20, "disks": 3, "restarts": 8, "hogs": 20, "points": 400,
        },
    ),
}  # fmt: skip
