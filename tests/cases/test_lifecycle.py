"""Trials 19 to 29: the life of a task in MCP, over the whole pair."""

import asyncio
import itertools
import random
import re
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
import structlog
from taskstore.v1 import leases_pb2, types_pb2

from mcp_bridge.app import Bridge
from store_service.client import Context
from tests.bridge.client import TASKS, Answer, Client, client_of
from tests.cases.conftest import ALL
from tests.cases.work import PATIENCE_SECONDS, TENANT, all_tasks, create, ended, shown, working
from tests.client.fake_store import outcomes
from tests.conftest import Clock, Stubs, bridge_on, serving, started
from tests.pair import free_ports
from tests.robustness.proxy import Mode, Proxy
from tests.store.builders import (
    bring_along,
    cancel,
    claim,
    complete,
    heartbeat,
    history,
    refusal_in,
    report,
    set_policy,
)
from tests.system.subscriptions import authorized_pair, token_of

ASKS = {**TASKS, "elicitation": {}}
FORM = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
UNKNOWN = "00000000-0000-4000-8000-000000000000"


async def test_19_a_task_outlives_bridge_and_token_of_its_caller(tmp_path: Path) -> None:
    with authorized_pair(tmp_path) as pair:
        async with aiohttp.ClientSession() as session:
            user = Client(session, int(pair.url.rpartition(":")[2].partition("/")[0]))
            user.token = token_of(tmp_path, "ann")
            task_id = await create(user)
            pair.bridge.kill()
            await asyncio.to_thread(pair.start_bridge)
            first, user.token = user.token, token_of(tmp_path, "ann")
            assert user.token != first
            assert (await user.task("get", task_id)).result["taskId"] == task_id
            user.token = token_of(tmp_path, "eve")
            unknown = await user.task("get", UNKNOWN)
            assert (unknown.status, unknown.code) == (400, -32602)
            assert (await user.task("get", task_id)).body == unknown.body


async def test_21_a_task_ends_once_whatever_comes_at_the_same_time(
    user: Client, store: Stubs, clock: Clock, database: asyncpg.Connection
) -> None:
    races, chance = 1_000 if ALL else 60, random.Random(21)
    await set_policy(store, tenant_id=TENANT, outstanding=races, leased=races)
    for _ in range(races):
        await create(user, tool="short")
    leases: list[types_pb2.Lease] = []
    while len(leases) < races:
        found = await store.leases.LeaseTasks(claim(workflow="work", limit=100, lease_ms=900_000))
        leases += [task.lease for task in found.tasks]

    async def finish(lease: types_pb2.Lease) -> bool:
        done = leases_pb2.CompleteTasksRequest(items=[complete(lease, b'{"content":[]}')])
        [item] = (await store.leases.CompleteTasks(done)).items
        assert item.HasField("completed") or refusal_in(item.refused).reason == "LEASE_LOST"
        return item.HasField("completed")

    async def race(lease: types_pb2.Lease) -> bool:
        if chance.random() < 0.5:
            finished, acknowledged = await asyncio.gather(finish(lease), user.task("cancel", lease.task_id))
        else:
            acknowledged, finished = await asyncio.gather(user.task("cancel", lease.task_id), finish(lease))
        assert acknowledged.status == 200
        return finished

    half = races // 2
    finished, _, late = await asyncio.gather(
        asyncio.gather(*map(race, leases[:half])), clock.advance(seconds=601), asyncio.gather(*map(race, leases[half:]))
    )
    await bring_along(store, database)
    for lease, is_finished in zip(leases, [*finished, *late], strict=True):
        result = (await user.task("get", lease.task_id)).result
        assert (result["status"] == "completed") == is_finished == ("result" in result)
        events = await history(store, lease.task_id, tenant_id=TENANT)
        assert [event for event in events if event in ("COMPLETED", "FAILED", "CANCELLED")] == [result["status"].upper()]
        assert (await user.task("cancel", lease.task_id)).status == 200
        assert (await user.task("get", lease.task_id)).result["status"] == result["status"]


async def test_22_what_is_past_its_deadline_stops_and_its_handle_lives_on_for_its_ttl(
    user: Client, store: Stubs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store_service.client.heartbeats._MOST_INTERVAL_SECONDS", 300.0)
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def work(ctx: Context, args: dict[str, Any]) -> str:
        if args.get("asks"):
            await ctx.ask("n", "How many?", FORM)
        if not args.get("sleeps"):
            return "done"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    async with working(store.address, work, concurrency=1, lease_seconds=900):
        waiting = await create(user, {"asks": True}, tool="short", capabilities=ASKS)
        await shown(user, waiting, "input_required", capabilities=ASKS)
        sleeping = await create(user, {"sleeps": True}, tool="short")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await begun.wait()
            await clock.advance(seconds=600)
            await stopped.wait()  # its next heartbeat is minutes away
        assert (await ended(store, await create(user))).state == types_pb2.TASK_STATE_COMPLETED, "its slot is free"
    for task_id in (waiting, sleeping):
        result = await shown(user, task_id, "failed", capabilities=ASKS)
        assert result["error"] == {"code": -32603, "message": "The work ran past its execution deadline."}
    await clock.advance(seconds=55)
    assert (await user.task("get", sleeping)).status == 200
    await clock.advance(seconds=10)
    for task_id in (waiting, sleeping):
        for action in ("get", "update", "cancel"):
            answer = await user.task(action, task_id)
            assert (answer.status, answer.code, answer.json["error"]["message"]) == (400, -32602, "Task not found")


async def test_23_a_handle_outlives_the_work_however_long_it_takes(user: Client, store: Stubs, clock: Clock) -> None:
    task_id = await create(user)
    [leased] = (await store.leases.LeaseTasks(claim(workflow="work", lease_ms=900_000))).tasks
    told = []
    for number in range(18):
        await clock.advance(seconds=840)
        await store.leases.HeartbeatTask(heartbeat(leased.lease, lease_ms=900_000))
        await store.leases.ReportProgress(report(leased.lease, number))
        result = (await user.task("get", task_id)).result
        assert result["status"] == "working"
        told.append(result["ttlMs"])
    assert 18 * 840 > 2 * 7_200, "it takes more than twice the ttl"
    assert all(840_000 <= later - earlier < 900_000 for earlier, later in itertools.pairwise(told))
    await store.leases.CompleteTask(complete(leased.lease, b'{"content":[]}'))
    await clock.advance(seconds=7_000)
    assert (await user.task("get", task_id)).result["status"] == "completed"


async def test_24_a_result_that_comes_too_late_is_one_lost_lease_and_no_fault(user: Client, store: Stubs) -> None:
    count = 1_000 if ALL else 40
    await set_policy(store, tenant_id=TENANT, outstanding=count, leased=count)

    async def work(ctx: Context, _args: dict[str, Any]) -> str:
        await store.tasks.CancelTask(cancel(ctx.task_id, tenant_id=TENANT, force=True))
        return "too late"

    with structlog.testing.capture_logs() as lines:
        async with working(store.address, work) as worker:
            for task_id in [await create(user) for _ in range(count)]:
                assert (await ended(store, task_id)).attempts == 1
            async with asyncio.timeout(PATIENCE_SECONDS):
                while sum(outcomes(worker).values()) < count:
                    await asyncio.sleep(0.01)
    assert outcomes(worker) == {"lease_lost": count}
    assert [line for line in lines if line["log_level"] not in ("debug", "info")] == []
    ends = [line["outcome"] for line in lines if line["event"] == "task run ended"]
    assert ends == ["lease_lost"] * count


async def answer(user: Client, task_id: str, key: str, content: Any) -> Answer:
    """Answers one question."""
    params = {"taskId": task_id, "inputResponses": {key: {"action": "accept", "content": content}}}
    return await user.ask("tasks/update", params, name=task_id, capabilities=ASKS)


async def test_25_an_answer_that_is_acknowledged_arrives(user: Client, store: Stubs) -> None:
    async def work(ctx: Context, _args: dict[str, Any]) -> Any:
        return (await ctx.ask("n", "How many?", FORM)).content

    async def one(number: int) -> None:
        task_id = await create(user, capabilities=ASKS)
        before = await shown(user, task_id, "input_required", capabilities=ASKS)  # at once, while its worker still suspends it
        if number % 3 == 0:
            assert (await answer(user, task_id, "other", {"n": -1})).status == 200
            refused = await answer(user, task_id, "n", {"n": "many"})
            assert (refused.status, refused.code) == (400, -32602)
            assert (await shown(user, task_id, "input_required", capabilities=ASKS))["inputRequests"] == before["inputRequests"]
        if number % 3 == 1:
            told = [*await asyncio.gather(answer(user, task_id, "n", {"n": 1}), answer(user, task_id, "n", {"n": 2}))]
            expected = [{"n": 1}, {"n": 2}]
        else:
            told = [await answer(user, task_id, "n", {"n": n}) for n in (3, 4)]
            expected = [{"n": 3}]
        assert [one.status for one in told] == [200, 200]
        assert (await ended(store, task_id)).state == types_pb2.TASK_STATE_COMPLETED
        assert (await user.task("get", task_id)).result["result"]["structuredContent"] in expected

    async with working(store.address, work):
        for first in range(0, 300 if ALL else 18, 6):
            await asyncio.gather(*(one(first + number) for number in range(6)))


async def test_26_a_key_is_new_each_time_also_after_a_crash(user: Client, store: Stubs, clock: Clock) -> None:
    async def work(ctx: Context, _args: dict[str, Any]) -> Any:
        return {"answers": [(await ctx.ask("n", "How many?", FORM)).content["n"] for _ in range(3)]}

    task_id = await create(user, capabilities=ASKS)
    seen: list[str] = []
    for number in range(3):
        async with working(store.address, work):
            asked = await shown(user, task_id, "input_required", capabilities=ASKS)
            [key] = asked["inputRequests"]
            seen.append(key)
            for old in seen[:-1]:
                assert (await answer(user, task_id, old, {"n": -1})).status == 200
            assert [*(await shown(user, task_id, "input_required", capabilities=ASKS))["inputRequests"]] == [key]
        assert (await answer(user, task_id, key, {"n": number})).status == 200
        [lost] = (await store.leases.LeaseTasks(claim(workflow="work", worker_id=f"lost-{number}"))).tasks
        await store.leases.HeartbeatTask(heartbeat(lost.lease))
        await clock.advance(seconds=31)  # who took it is never heard of again
    async with working(store.address, work):
        await ended(store, task_id)
    assert len({*seen}) == 3
    assert (await user.task("get", task_id)).result["result"]["structuredContent"] == {"answers": [0, 1, 2]}


async def test_27_times_are_whole_milliseconds(user: Client) -> None:
    told = await user.call("slow", tasks=True)
    assert b'"ttlMs":7200000,"pollIntervalMs":2000' in told.body
    later = (await user.task("get", told.result["taskId"])).body
    assert re.search(rb'"ttlMs":7[23]\d{5},"pollIntervalMs":2000', later)


async def test_29_a_call_that_is_repeated_with_its_key_is_one_task(
    user: Client, store: Stubs, bridge: Bridge, dsn: str, routes: Path
) -> None:
    way = await Proxy("client", listen=free_ports(1)[0], upstream=bridge.port).start()
    behind = await Proxy("bridge", listen=free_ports(1)[0], upstream=int(store.address.rpartition(":")[2])).start()
    async with (
        started(bridge_on(routes, store=f"127.0.0.1:{behind.listen}")) as second,
        aiohttp.ClientSession() as session,
    ):
        lossy, other = Client(session, way.listen), Client(session, second.port)

        async def call(client: Client, arguments: Any = None, key: str = "k") -> Answer:
            return await client.call("work", arguments or {"secret": "first"}, tasks=True, Idempotency_Key=key)

        way.set(Mode.DROP_REPLY)
        with pytest.raises(aiohttp.ClientError):
            await call(lossy)
        way.set(Mode.PASS)
        [made] = await all_tasks(store)
        answers = await asyncio.gather(*(call(client) for client in (lossy, other, user) for _ in range(20)))
        assert {answer.result["taskId"] for answer in answers} == {made.task_id}
        refused = await call(user, {"secret": "second"})
        assert (refused.status, refused.code) == (409, 40900)
        assert b"first" not in refused.body
        assert len(await all_tasks(store)) == 1

        behind.set(Mode.DROP_REPLY)  # the store's answers are lost behind the bridge
        lost = asyncio.create_task(call(other, key="l"))
        while len(await all_tasks(store)) < 2:
            if lost.done():  # its connection was cut before it had arrived
                behind.set(Mode.PASS)
                await call(other)
                behind.set(Mode.DROP_REPLY)
                lost = asyncio.create_task(call(other, key="l"))
            await asyncio.sleep(0.005)
        behind.set(Mode.PASS)
        await lost
        assert (await call(other, key="l")).result["taskId"] == (await call(user, key="l")).result["taskId"]
        assert len(await all_tasks(store)) == 2
    for proxy in (way, behind):
        await proxy.stop()
    async with (
        serving(dsn) as later,
        started(bridge_on(routes, store=later.address)) as third,
        client_of(third) as client,
    ):
        again = await client.call("work", {"secret": "first"}, tasks=True, Idempotency_Key="k")
        assert again.result["taskId"] == made.task_id
