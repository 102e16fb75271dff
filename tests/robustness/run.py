"""One run: the world, its clients, its faults in stretches with quiet between them, its evidence, its judgement, its report."""

import asyncio
import json
import platform
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from tests.pair import ROOT
from tests.robustness.checker.footprint import check_footprint
from tests.robustness.checker.judge import judge, resolve_unknowns
from tests.robustness.clients.callers import Caller
from tests.robustness.clients.lessees import Lessee
from tests.robustness.clients.mcp import McpClient
from tests.robustness.clients.operators import Operator
from tests.robustness.clients.oversized import Oversizer
from tests.robustness.clients.state import Client, Shared
from tests.robustness.clients.wire import open_apis
from tests.robustness.evidence import keep_evidence, read_evidence
from tests.robustness.history import History
from tests.robustness.nemesis import CRASH, CUTS, FAILOVER, KILLS, PAUSES, POINTS, Nemesis, as_json, draw_plan
from tests.robustness.plans import Plan
from tests.robustness.surroundings import BOUNCER, CLOCKS, CODE, DISK, POOL, ROLL, Surroundings
from tests.robustness.world import World, descriptors, resident_bytes

if TYPE_CHECKING:
    from tests.robustness.defects import Defect

_IDLE: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND state_change < now() - interval '5 s' "
    "AND application_name = 'tenure-store'"
)
_LISTENING: Final = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure-wakeups'"
_LIVE: Final = "SELECT count(*) FROM tenure.task_state WHERE ended_at IS NULL"


async def run(plan: Plan, *, seed: int, seconds: float, root: Path, keep: bool, defect: "Defect | None" = None) -> int:
    """Returns 0 if nothing is wrong."""
    folder = root / f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    print(f"seed {seed}, {seconds:g} s, {folder}", flush=True)
    began = time.monotonic()
    history: History | None = None
    disk, pooled = DISK in plan.faults, BOUNCER in plan.faults
    async with World(folder, small_disk=disk, pgbouncer=pooled, defect=defect) as world:
        history = History(folder / "history.jsonl")
        shared = Shared(history, plan.pace_per_second, plan.most_tasks)
        nemesis = Nemesis(world, Surroundings(world, shared))
        problems, quiet = await _stretches(plan, seed, seconds, world, nemesis, shared)
        history.close()
        await keep_evidence(world.postgres.dsn(), folder)
        problems += [*history.foreign, *check_footprint(quiet)]
        ends = [end for part in world.parts.values() for end in part.unexpected_ends]
        versions = await _versions(world.postgres.dsn())
    evidence = await asyncio.to_thread(read_evidence, folder)
    violations = problems + await asyncio.to_thread(judge, evidence)
    counts = _counts(nemesis)
    report = {
        "plan": plan.name, "seed": seed, "seconds": seconds, "elapsed_seconds": round(time.monotonic() - began, 1),
        "versions": versions, "machine": {"cores": _cores(), "platform": platform.platform()},
        "operations": history.operations, "operations_by_kind": dict(history.counts), "outcomes": dict(history.outcomes),
        "tasks": len(evidence.rows), "states": dict(Counter(row.state for row in evidence.rows.values())),
        "accepted_writes": len(evidence.order) + len(evidence.writes), "effects": len(evidence.effects),
        "effects_refused": world.ledger.fenced, "faults": counts, "faults_by_kind": nemesis.counts,
        "faults_failed": [done.failed for done in nemesis.done if done.failed],
        "unknown_outcomes": resolve_unknowns(evidence), "quiet": quiet, "unexpected_ends": ends,
        "violations": violations[:500], "violation_count": len(violations),
    }  # fmt: skip
    report["shortfalls"] = _shortfalls(plan, seconds, report)
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    if not keep:
        shutil.rmtree(folder / "postgres", ignore_errors=True)
    shown = {key: value for key, value in report.items() if key not in ("violations", "operations_by_kind")}
    print(json.dumps(shown, indent=1), flush=True)
    print("\n".join(violations[:50]) or "no violation", flush=True)
    return 1 if violations or report["shortfalls"] else 0


async def _stretches(
    plan: Plan, seed: int, seconds: float, world: World, nemesis: Nemesis, shared: Shared
) -> tuple[list[str], list[dict[str, Any]]]:
    """Faults and quiet in turn. Returns what was not alive again in time, and how long each quiet took."""
    apis = open_apis(world.ports("clients"))
    callers = [Caller(f"caller-{number}", shared, seed, apis) for number in range(plan.callers)]
    lessees = [Lessee(f"lessee-{number}", shared, seed, apis) for number in range(plan.lessees)]
    for number in range(plan.brisk_clients):
        callers.append(Caller(f"brisk-caller-{number}", shared, seed, apis, eagerness=0.75, workflows=("raw",), most_at_once=8))
        lessees.append(Lessee(f"brisk-lessee-{number}", shared, seed, apis, is_tidy=True))
    speakers = [McpClient(f"mcp-{number}", shared, seed, world.bridge_ports) for number in range(plan.mcp_clients)]
    operator = Operator("operator", shared, seed, apis)
    oversizer = Oversizer("oversizer", shared, seed, apis, world.ports("clients"))
    clients: list[Client] = [*callers, *lessees, *speakers, operator, oversizer]
    running = [asyncio.create_task(client.run()) for client in clients]
    teller = asyncio.create_task(_tell(shared, nemesis))
    stretches = max(1, round(seconds / plan.stretch_seconds))
    counts = plan.scaled(seconds)
    problems: list[str] = []
    quiet: list[dict[str, Any]] = []
    for number in range(stretches):
        mine = {kind: count * (number + 1) // stretches - count * number // stretches for kind, count in counts.items()}
        faults = draw_plan(seed * 1000 + number, seconds / stretches, {kind: count for kind, count in mine.items() if count})
        (world.folder / f"plan-{number}.json").write_text(json.dumps(as_json(faults), indent=1))
        until = time.monotonic() + seconds / stretches
        await nemesis.carry_out(faults)
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        shared.is_quiet = True
        wrong, measured = await _rest(world, shared, [*callers, *speakers, oversizer], plan.quiet_seconds)
        problems += wrong
        quiet.append(measured)
        shared.is_quiet = False
    shared.is_quiet = shared.is_over = True
    ended = await asyncio.gather(*running, return_exceptions=True)
    problems += [f"a client ended with {end!r}" for end in ended if isinstance(end, BaseException)]
    teller.cancel()
    for known in range(0, len(shared.known), 400):
        await callers[0].read(shared.known[known : known + 400])
    for speaker in speakers:
        await speaker.close()
    await oversizer.close()
    for api in apis:
        await api.channel.close()
    return problems, quiet


async def _rest(
    world: World, shared: Shared, clients: list[Caller | McpClient | Oversizer], quiet_seconds: float
) -> tuple[list[str], dict[str, Any]]:
    """Liveness: without faults and without new work, everything ends, and nothing is left hanging."""
    began = time.monotonic()
    connection = await asyncpg.connect(world.postgres.dsn(), timeout=30)
    left = -1
    listening_after = None
    while time.monotonic() - began < quiet_seconds:
        left = await connection.fetchval(_LIVE)
        if listening_after is None and await connection.fetchval(_LISTENING) >= 2:
            listening_after = round(time.monotonic() - began, 1)
        owes = sum(client.owes for client in clients)
        if left == 0 and owes == 0 and listening_after is not None:
            break
        await asyncio.sleep(0.25)
    took = round(time.monotonic() - began, 1)
    problems = []
    if left:
        problems.append(f"L {left} tasks had not ended {took} s after the last fault")
    if owes:
        problems.append(f"L {owes} writes were not answered {took} s after the last fault")
    if listening_after is None:
        problems.append("L nobody listens for hints")
    if idle := await connection.fetchval(_IDLE):
        problems.append(f"L {idle} connections are idle in a transaction")
    problems += [f"S3/S13 at rest {row}" for row in await connection.fetch("SELECT x::text FROM tenure.audit x")]
    problems += [f"S13 at rest {row}" for row in await connection.fetch("SELECT x::text FROM tenure.budget_audit x")]
    await connection.close()
    measured: dict[str, Any] = {"seconds": took, "listening_after": listening_after}
    for part in world.parts.values():
        if part.is_running:
            measured[part.name] = {"fds": descriptors(part.pid), "mib": resident_bytes(part.pid) >> 20}
    return problems, measured


async def _tell(shared: Shared, nemesis: Nemesis) -> None:
    """How it goes, now and then."""
    while True:
        await asyncio.sleep(15)
        elapsed = time.monotonic() - shared.started
        print(
            f"{elapsed:6.0f} s  {shared.history.operations} operations, {shared.created} tasks, {shared.live} live, "
            f"{shared.history.outcomes['unknown']} unknown, faults {_counts(nemesis)}", flush=True,
        )  # fmt: skip


def _counts(nemesis: Nemesis) -> dict[str, int]:
    counts = nemesis.counts
    return {
        "kills": sum(counts.get(kind, 0) for kind in KILLS), "pauses": sum(counts.get(kind, 0) for kind in PAUSES),
        "cuts": sum(counts.get(kind, 0) for kind in CUTS),
        "crashes": counts.get(CRASH, 0), "failovers": counts.get(FAILOVER, 0),
        "clocks": sum(counts.get(kind, 0) for kind in CLOCKS), "restarts": counts.get(ROLL, 0),
        "disks": counts.get(DISK, 0), "hogs": counts.get(POOL, 0) + counts.get(CODE, 0),
        "points": sum(counts.get(kind, 0) for kind in POINTS),
    }  # fmt: skip


def _shortfalls(plan: Plan, seconds: float, report: dict[str, Any]) -> list[str]:
    """What a run of this plan must have had, and had not."""
    had = {**report["faults"], "operations": report["operations"], "tasks": report["tasks"]}
    wanted = {
        name: count if seconds >= plan.seconds else int(count * seconds / plan.seconds) for name, count in plan.hard.items()
    }
    return [f"{had[name]} {name} of {count}" for name, count in wanted.items() if had[name] < count]


async def _versions(dsn: str) -> dict[str, str]:
    connection = await asyncpg.connect(dsn)
    postgres = await connection.fetchval("SHOW server_version")
    await connection.close()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {"tenure": commit, "postgres": str(postgres), "python": platform.python_version()}


def _cores() -> int:
    import os  # noqa: PLC0415

    return len(os.sched_getaffinity(0))
