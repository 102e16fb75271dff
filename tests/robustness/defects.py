"""The seeded bugs of the plan: each is put into a run of its own, which must find it.

`python -m tests.robustness.defects [NAME ...]` tells for each how long it took, and what the checker saw.
What the checker says of a run without them is worth something because of these. A defect of the database is put into its
function, one of the services into a copy of their code, that the processes of the run are started from.
"""

import asyncio
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import asyncpg

from tests.changes import (
    CANCELS_ENDED,
    CURSORS_OF_A_SEQUENCE,
    NO_TOKEN,
    REMOVES_HELD,
    REVIVES,
    STALE_CONSUMES,
    Change,
    try_each,
)
from tests.pair import ROOT
from tests.robustness.nemesis import CRASH
from tests.robustness.plans import PLANS, Plan
from tests.robustness.run import run

SECONDS: Final = 60.0
TRIES: Final = 3
"""So many seeds a defect has to be found with."""
_FUNCTION: Final = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace AND proname = $1"


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One bug."""

    found_by: tuple[str, ...]
    """The invariants that tell of it; at least one of them must."""
    functions: tuple[Change, ...] = ()
    files: tuple[Change, ...] = ()
    statement: str = ""
    """What else is done to the database, such as taking away a guard that would hide the defect."""
    faults: Mapping[str, int] = field(default_factory=lambda: {"kill": 3, "pause": 6, "cut": 4})
    """What goes wrong besides."""
    most_leased: int = 0
    """How many leases tenant `beta` may have at a time, where that matters."""

    async def put_into(self, connection: asyncpg.Connection) -> None:
        """The database has the defect from now on."""
        for change in self.functions:
            text: str = await connection.fetchval(_FUNCTION, change.where)
            await connection.execute(change.of(text))
        if self.statement:
            await connection.execute(self.statement)

    def copy_code(self, folder: Path) -> Path:
        """A folder to start the services from: the code with the defect, or the code as it is where there is none in it."""
        if not self.files:
            return ROOT
        for part in ("store_service", "mcp_bridge"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "tests").symlink_to(ROOT / "tests")
        for change in self.files:
            file = folder / change.where
            file.write_text(change.of(file.read_text()))
        return folder


_NOW: Final = ("v_now := task_now();", "v_now := now();")
_LOCK_TENANT: Final = "PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;"
_LOCK_TASK: Final = "PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_task FOR NO KEY UPDATE;"

DEFECTS: Final = {
    "a finish that checks no token": Defect(found_by=("S2", "S5"), functions=(NO_TOKEN,)),
    "leases counted without a lock": Defect(
        found_by=("S3",), most_leased=4,
        functions=(Change("claim_tasks", "LIMIT v_visits FOR NO KEY UPDATE OF t SKIP LOCKED) x;", "LIMIT v_visits) x;"),),
    ),
    "a clock that stands still in a statement": Defect(
        found_by=("S1", "S2"), faults={"locks": 12, "pause": 2},
        functions=tuple(Change(name, *_NOW) for name in ("heartbeat_tasks", "append_checkpoints", "finish_tasks")),
    ),
    "a signal that does not wait for who suspends": Defect(
        found_by=("S8",),
        functions=(
            Change("publish_signal", _LOCK_TENANT, ""),
            Change("publish_signal", _LOCK_TASK, ""),
            Change(  # which is seen now and then only, unless it looks and writes at different times
                "publish_signal", "IF v_state = 'PENDING' AND p_max",
                "PERFORM pg_sleep(0.1);\n  IF v_state = 'PENDING' AND p_max",
            ),
        ),
    ),
    "a stale worker that consumes a signal": Defect(found_by=("S8",), functions=(STALE_CONSUMES,)),
    "an acknowledgement before the commit": Defect(
        found_by=("S4", "S5"), faults={CRASH: 5, "kill": 2},
        files=(Change("store_service/db/pool.py", '"jit": "off",', '"jit": "off",\n    "synchronous_commit": "off",'),),
    ),
    "a heartbeat that revives": Defect(found_by=("S1",), functions=(REVIVES,)),
    "a cancel of what is complete": Defect(
        found_by=("S5",), statement="DROP TRIGGER ended_stays ON tenure.task_state",
        functions=(CANCELS_ENDED,),
    ),
    "a creation that is repeated under another id": Defect(
        found_by=("S4",), faults={"kill": 2, "point bridge.modern.tools.call.before_answer": 20},
        files=(
            Change("mcp_bridge/methods/creation.py", "request_id=state.call_id,", "request_id=uuid4().hex,"),
            Change(
                "mcp_bridge/methods/creation.py", "from typing import Final\n",
                "from typing import Final\nfrom uuid import uuid4\n",
            ),
        ),
    ),
    "cursors of a sequence": Defect(found_by=("S11",), functions=(CURSORS_OF_A_SEQUENCE,)),
    "a removal of what is held": Defect(found_by=("S11",), functions=(REMOVES_HELD,)),
    "a result that is written anew": Defect(
        found_by=("S6",),
        files=(
            Change(
                "mcp_bridge/wire/results.py", "    if data.startswith(_CONTENT_FIRST):\n        return data\n",
                "    data = msgspec.json.encode(msgspec.json.decode(data))\n",
            ),
        ),
    ),
}  # fmt: skip


def plan_for(defect: Defect) -> Plan:
    """The run that is to find it."""
    return replace(PLANS["smoke"], name="defect", seconds=SECONDS, faults=defect.faults, hard={}, quiet_seconds=15.0)


async def find(defect: Defect, folder: Path) -> str | None:
    """With which seed it was found, and what told of it; None if nothing did."""
    for seed in range(1, TRIES + 1):
        root = folder / f"seed-{seed}"
        with (folder / f"seed-{seed}.log").open("w") as log, contextlib.redirect_stdout(log):
            await run(plan_for(defect), seed=seed, seconds=SECONDS, root=root, keep=False, defect=defect)
        [report] = root.glob("*/report.json")
        told: dict[str, Any] = json.loads(report.read_text())
        for violation in told["violations"]:
            if violation.partition(" ")[0] in defect.found_by:
                return f"seed {seed}: {violation}"
    return None


def main() -> int:
    """Tries them all, or those named."""
    root = ROOT / ".tenure" / "robustness" / time.strftime("defects-%Y%m%d-%H%M%S")

    def find_by_name(name: str) -> str | None:
        folder = root / name.replace(" ", "-")
        folder.mkdir(parents=True)
        return asyncio.run(find(DEFECTS[name], folder))

    return try_each(sys.argv[1:] or DEFECTS, find_by_name)


if __name__ == "__main__":
    sys.exit(main())
