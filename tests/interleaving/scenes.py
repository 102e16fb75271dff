"""What there is before a race: tasks in the states named, and tenants with as much room as makes the order matter."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from store_service.model.leases import Disposition
from tests.interleaving.operations import (
    HOLDER,
    LEASE_MS,
    Target,
    approve,
    cancel,
    checkpoint,
    claim,
    claim_cleanup,
    confirm_export,
    create,
    export,
    finish,
    meter,
    pause,
    place_hold,
    policy_of,
    prepare,
    publish,
    remove,
    reserve,
    set_budget,
    suspend_inputs,
    suspend_signal,
)
from tests.interleaving.stage import BEFORE, LONG_AGO, Stage

SCENES: Final = (
    "nobody",
    "absent",
    "queued",
    "leased",
    "buffered",
    "handed_on",
    "woken",
    "signal",
    "input",
    "expired",
    "ended",
    "dead_letter",
    "wished",
    "budgeted",
    "reserved",
    "lapsed",
    "exported",
    "failed",
    "paused",
    "unclean",
    "held",
    "removed",
    "exported_stone",
    "prepared",
    "approved",
)
"""A task's state. `buffered` is leased, its signal there already; `handed_on` is that, released again; `woken` is that,
suspended and so woken at once. `expired` is leased, and its lease ran out; `wished` is leased, and its end is wished for.
`budgeted` is leased, and its tenant has a budget; `reserved` is that, and holds what there is; `lapsed` is that, its lease
ran out, and nobody took it over in time; `exported` is `budgeted`, and a fact of it may be forgotten. `paused` is queued, and
held back. `dead_letter` ended before its signal came to it. `ended` is what may be removed, by whoever holds
the cleanup lease; `unclean` is that, and the lease ran out; `held` is that, and must be kept; `removed` left its
tombstone; `exported_stone` is that, and it is kept elsewhere; `prepared` is that, and its purge waits for a decision;
`approved` is that, and has it.
`absent` is not there, and in `nobody` its tenant is not either."""

STONES: Final = ("removed", "exported_stone", "prepared", "approved")
OVER: Final = frozenset({"ended", "unclean", "held", *STONES})
Slot = tuple[str, str, str]
"""A tenant, a task, a scene."""


async def set_scene(stage: Stage, name: str, slots: tuple[Slot, ...], *, outstanding: int, leased: int) -> None:
    """Puts back what was kept under the name, or makes it and keeps it: the tasks, and so much room in each tenant."""
    if not stage.has(name):
        await stage.put_back("nothing")
        await _make(stage, LONG_AGO, [slot for slot in slots if slot[2] in OVER])
        await _make(stage, BEFORE, [slot for slot in slots if slot[2] not in (*OVER, "nobody")])
        for tenant, task, scene in slots:
            if scene in OVER:
                await _put_away(stage, Target(side="before", tenant=tenant, task=task, new_task=task), scene)
        for row in await stage.look.read("SELECT tenant_id, outstanding, leased FROM tenure.tenant"):
            most = max(1, row["outstanding"] + outstanding)
            policy = policy_of(outstanding=most, leased=min(most, max(1, row["leased"] + leased)))
            await stage.look.tenants.set_tenant_policy(row["tenant_id"], policy)
        await stage.keep(name)
    await stage.put_back(name)


async def _put_away(stage: Stage, target: Target, scene: str) -> None:
    """What is done with it, and who may."""
    await stage.set_clock(BEFORE)
    if not await stage.look.read("SELECT FROM tenure.cleanup_lease WHERE tenant_id = $1", target.tenant):
        await claim_cleanup(stage.look, target, lease_ms=1_000 if scene == "unclean" else LEASE_MS)
    if scene == "held":
        await place_hold(stage.look, target)
    if scene in STONES:
        await remove(stage.look, target)
        await stage.set_clock(BEFORE + timedelta(seconds=1))
        for step in (export, prepare, approve)[: STONES.index(scene)]:
            await step(stage.look, replace(target, side="bob") if step is approve else target)


async def _make(stage: Stage, now: datetime, slots: list[Slot]) -> None:
    await stage.set_clock(now)
    session = stage.look
    made: list[tuple[Target, str]] = []
    for tenant, task, scene in slots:
        await session.tenants.set_tenant_policy(tenant, policy_of(outstanding=100, leased=100))
        target = Target(side="before", tenant=tenant, task=task, new_task=task, tenants=(tenant,))
        if scene in ("budgeted", "reserved", "lapsed", "exported"):
            await set_budget(session, target)
        if scene == "exported":
            await set_budget(session, target)
            await confirm_export(session, target)
            await meter(session, target)
        if scene == "absent":
            continue
        await create(session, target, ttl_ms=1 if scene in OVER else LEASE_MS)
        await claim(session, target, worker_id=HOLDER, lease_ms=1_000 if scene in ("expired", "lapsed") else LEASE_MS)
        await checkpoint(session, target, revision=0)
        made.append((target, scene))
    for target, scene in made:  # only now, as a claim takes what is ready
        match scene:
            case "queued":
                await finish(session, target, Disposition.RELEASED)
            case "paused":
                await finish(session, target, Disposition.RELEASED)
                await pause(session, target)
            case "failed":
                await finish(session, target, Disposition.FAILED)
            case _ if scene in OVER:
                await finish(session, target, Disposition.COMPLETED)
            case "handed_on":
                await publish(session, target)
                await finish(session, target, Disposition.RELEASED)
            case "woken":
                await publish(session, target)
                await suspend_signal(session, target)
            case "dead_letter":
                await publish(session, target)
                await finish(session, target, Disposition.COMPLETED)
            case "buffered":
                await publish(session, target)
            case "signal":
                await suspend_signal(session, target)
            case "input":
                await suspend_inputs(session, target)
            case "wished":
                await cancel(session, target)
            case "reserved" | "lapsed":
                await reserve(session, target)
