"""How many streams there are, how slow they may be, and what ends them. Contract, section 6; cases 63 to 65."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mcp_bridge.access.callers import Authenticate, Caller
from mcp_bridge.app import Bridge
from tests.bridge.client import TASKS, Client, client_of
from tests.bridge.listening import acknowledged, bridging, create, figure, is_end, lease, listening, told
from tests.conftest import Stubs, store_on
from tests.store.builders import cancel, complete, report, until


@pytest.mark.row("T13")
async def test_a_principal_has_so_many_streams_and_no_more(store: Stubs, routes: Path) -> None:
    async with (
        bridging(store.address, routes, streams_per_principal=2) as bridge,
        client_of(bridge) as user,
        AsyncExitStack() as open_streams,
    ):
        streams = [await open_streams.enter_async_context(listening(bridge.port, tools=True)) for _ in range(2)]
        for stream in streams:
            await acknowledged(stream)
        params = {"notifications": {"toolsListChanged": True}}
        answer = await user.ask("subscriptions/listen", params)
        assert (answer.status, answer.code, "Retry-After" in answer.headers) == (429, 42900, True)
        streams[0].reset()

        async def has_room() -> bool:
            return await figure(bridge.admin_port, "tenure_bridge_subscriptions") < 2

        await until(has_room, "there is room again")
        async with listening(bridge.port, tools=True) as again:
            await acknowledged(again)


@pytest.mark.row("T13")
async def test_a_bridge_has_so_many_streams_and_no_more(store: Stubs, routes: Path) -> None:
    async with (
        bridging(store.address, routes, most_streams=1) as bridge,
        client_of(bridge) as user,
        listening(bridge.port, tools=True) as stream,
    ):
        await acknowledged(stream)
        answer = await user.ask("subscriptions/listen", {"notifications": {}})
        assert (answer.status, answer.code) == (429, 42900)


@pytest.mark.must("S-06", "H-15", "H-16")
async def test_many_streams_look_at_the_store_through_one_watch_and_leave_nothing_behind(
    user: Client, store: Stubs, bridge: Bridge
) -> None:
    ids = [await create(user) for _ in range(3)]
    async with AsyncExitStack() as open_streams:
        streams = [await open_streams.enter_async_context(listening(bridge.port, *ids)) for _ in range(10)]
        for stream in streams:
            await acknowledged(stream)
            assert {(await told(stream))["taskId"] for _ in ids} == set(ids)
        assert await figure(bridge.admin_port, "tenure_bridge_subscriptions") == 10
        assert await figure(store.admin_port, "tenure_store_watched_tasks") == 3
        for number, stream in enumerate(streams):
            stream.reset() if number % 2 else stream.writer.close()

    async def is_forgotten() -> bool:
        return not await figure(bridge.admin_port, "tenure_bridge_subscriptions") and not await figure(
            store.admin_port, "tenure_store_watched_tasks"
        )

    await until(is_forgotten, "the task is forgotten")


async def test_a_slow_reader_is_told_the_latest_and_holds_nobody_up(user: Client, store: Stubs, bridge: Bridge) -> None:
    task_id = await create(user)
    held = await lease(store)
    async with (
        listening(bridge.port, task_id, receive_bytes=4096) as slow,
        listening(bridge.port, task_id) as quick,
    ):
        await acknowledged(quick)
        await told(quick)
        count = 600
        for value in range(count):
            sent = report(held, value)
            sent.message = f"{value} " + "x" * 1000
            await store.leases.ReportProgress(sent)
            while (await told(quick))["statusMessage"] != sent.message:
                pass
        await store.leases.CompleteTask(complete(held, b'{"content":[]}'))
        while (task := await told(quick))["status"] != "completed":
            pass
        (last,) = await quick.rest()
        assert is_end(last)
        first, *snapshots, last = await slow.rest()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        assert is_end(last)
        assert len(snapshots) < count, "what it did not read in time was skipped"
        snapshots[-1]["params"].pop("_meta")
        assert snapshots[-1]["params"] == task, "the last was not"
    assert await figure(bridge.admin_port, "tenure_bridge_snapshots_coalesced_total") > 0


async def test_a_large_result_is_told_whole(user: Client, store: Stubs, bridge: Bridge) -> None:
    task_id = await create(user)
    text = "é" * 1_000_000
    await store.leases.CompleteTask(complete(await lease(store), f'{{"content":[{{"type":"text","text":"{text}"}}]}}'.encode()))
    async with client_of(bridge) as other:
        answer = await other.ask("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}, capabilities=TASKS)
    assert answer.events[1]["params"]["result"]["content"] == [{"type": "text", "text": text}]
    assert is_end(answer.events[2])


@pytest.mark.row("H18")
async def test_a_reader_that_reads_nothing_is_given_up(
    user: Client, store: Stubs, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_bridge.stream.WRITE_SECONDS", 0.2)
    task_id = await create(user)
    await store.leases.CompleteTask(complete(await lease(store), b'"' + b"x" * 2_000_000 + b'"'))
    async with listening(bridge.port, task_id, receive_bytes=4096):

        async def is_gone() -> bool:
            return not await figure(bridge.admin_port, "tenure_bridge_subscriptions")

        await until(is_gone, "the reader is given up")


@pytest.mark.row("H18")
@pytest.mark.must("H-14")
async def test_silence_is_filled_with_comments(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_bridge.stream.KEEP_ALIVE_SECONDS", 0.01)
    async with listening(bridge.port, tools=True) as stream:
        await acknowledged(stream)
        assert [await stream.comment() for _ in range(3)] == [b": keep-alive"] * 3


@pytest.mark.row("H27")
@pytest.mark.must("S-07", "C-02")
async def test_a_bridge_that_stops_answers_each_request_and_then_closes(store: Stubs, routes: Path) -> None:
    async with bridging(store.address, routes) as bridge, client_of(bridge) as user, AsyncExitStack() as open_streams:
        task_id = await create(user)
        streams = [await open_streams.enter_async_context(listening(bridge.port, task_id, tools=True)) for _ in range(3)]
        for stream in streams:
            await acknowledged(stream)
            await told(stream)
        async with asyncio.timeout(60):
            await bridge.stop()
        for stream in streams:
            (last,) = await stream.rest()
            assert is_end(last)


async def test_a_store_that_is_away_means_silence_and_then_what_stands(dsn: str, routes: Path) -> None:
    first = store_on(dsn)
    await first.start()
    async with bridging(f"127.0.0.1:{first.port}", routes) as bridge, client_of(bridge) as user:
        changing, resting = await create(user), await create(user)
        async with listening(bridge.port, changing, resting) as stream:
            await acknowledged(stream)
            assert {(await told(stream))["taskId"] for _ in range(2)} == {changing, resting}
            await first.stop()
            second = store_on(dsn, port=first.port)
            await second.start()

            async def is_cancelled() -> bool:
                return (await user.task("cancel", changing)).status == 200

            await until(is_cancelled, "the task is cancelled")
            task = await told(stream)
            assert (task["taskId"], task["status"]) == (changing, "cancelled")
            await user.task("cancel", resting)
            task = await told(stream)
            assert (task["taskId"], task["status"]) == (resting, "cancelled")
            (last,) = await stream.rest()
            assert is_end(last)
    await second.stop()


async def test_a_store_that_is_away_at_first_is_silence_and_then_what_stands(dsn: str, routes: Path) -> None:
    first = store_on(dsn)
    await first.start()
    async with bridging(f"127.0.0.1:{first.port}", routes) as bridge, client_of(bridge) as user:
        task_id = await create(user)
        await first.stop()
        async with listening(bridge.port, task_id) as stream:
            assert await acknowledged(stream) == {"taskIds": [task_id]}
            second = store_on(dsn, port=first.port)
            await second.start()
            assert (await told(stream))["taskId"] == task_id
    await second.stop()


def access_until(expires_at: float) -> Callable[[str], Authenticate]:
    """Lets everybody in, until a time."""

    def access(tenant: str) -> Authenticate:
        caller = Caller(tenant=tenant, issuer="dev", subject="dev", expires_at=expires_at, is_development=True)

        async def authenticate(_: object) -> Caller:
            return caller

        return authenticate

    return access


@pytest.mark.row("A13")
async def test_a_stream_ends_with_the_token_that_it_was_opened_with(
    store: Stubs, routes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_bridge.app.development_access", access_until(time.time() + 1))
    async with bridging(store.address, routes) as bridge, listening(bridge.port, tools=True) as stream:
        await acknowledged(stream)
        (last,) = await stream.rest()
        assert is_end(last)


@pytest.mark.row("A13")
async def test_no_snapshot_is_told_after_the_end_of_the_token(
    store: Stubs, routes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = time.time() + 3_600
    monkeypatch.setattr("mcp_bridge.app.development_access", access_until(end))
    async with bridging(store.address, routes) as bridge, client_of(bridge) as user:
        task_id = await create(user)
        async with listening(bridge.port, task_id) as stream:
            await acknowledged(stream)
            await told(stream)
            monkeypatch.setattr("mcp_bridge.methods.listen.time.time", lambda: end)
            await store.tasks.CancelTask(cancel(task_id, tenant_id="dev"))
            (last,) = await stream.rest()
            assert is_end(last)
