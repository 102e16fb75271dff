"""Subscriptions over a real store. Contract, sections 6 and 10.20; security checklist H27, T4, T5, T10, T13; cases 63 to 65."""

import asyncio
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from taskstore.v1 import types_pb2

from mcp_bridge.access.callers import Authenticate, Caller
from mcp_bridge.app import Bridge
from tests.bridge.client import TASKS, Client, client_of
from tests.bridge.listening import SUBSCRIPTION_ID, Stream, listening
from tests.conftest import Clock, Stubs, bridge_on, started, store_on
from tests.store.builders import cancel, claim, complete, fail, new_task, question, report, suspend

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: work, workflow: work, task: optional, ttl: 2h, poll_interval: 10ms, input_schema: {type: object}}
"""
ASKS = {**TASKS, "elicitation": {}}
FORM = b'{"message":"Go?","requestedSchema":{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}}'
YES = {"a": {"action": "accept", "content": {"ok": True}}}


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES)
    return path


@pytest.fixture
async def bridge(store: Stubs, routes: Path) -> AsyncIterator[Bridge]:
    async with bridging(store.address, routes) as running:
        yield running


@pytest.fixture
async def user(bridge: Bridge) -> AsyncIterator[Client]:
    async with client_of(bridge) as client:
        yield client


def bridging(store_address: str, routes: Path, **settings: Any) -> AbstractAsyncContextManager[Bridge]:
    """A bridge over a store."""
    return started(bridge_on(routes, store=store_address, drain_seconds=5, **settings))


async def create(user: Client, **arguments: Any) -> str:
    """Creates a task and returns its id."""
    task_id = (await user.call("work", arguments, tasks=True)).result["taskId"]
    assert isinstance(task_id, str)
    return task_id


async def lease(store: Stubs) -> types_pb2.Lease:
    """Takes the one task that is ready."""
    (leased,) = (await store.leases.LeaseTasks(claim(workflow="work", limit=1))).tasks
    return leased.lease


async def shown(user: Client, task_id: str) -> dict[str, Any]:
    """What a subscription would tell of the task now: what `tasks/get` answers, without what every result has."""
    result = (await user.task("get", task_id, capabilities=ASKS)).result
    return {name: value for name, value in result.items() if name not in ("resultType", "_meta")}


async def told(stream: Stream, request_id: Any = 1) -> dict[str, Any]:
    """The task that the next frame tells of."""
    frame = await stream.frame()
    assert (frame["jsonrpc"], frame["method"], "id" in frame) == ("2.0", "notifications/tasks", False)
    meta = frame["params"].pop("_meta")
    assert meta == {SUBSCRIPTION_ID: request_id}
    task = frame["params"]
    assert isinstance(task, dict)
    return task


async def acknowledged(stream: Stream, request_id: Any = 1) -> dict[str, Any]:
    """What the acknowledgement agrees to, which must be the next frame."""
    frame = await stream.frame()
    assert frame["method"] == "notifications/subscriptions/acknowledged"
    assert frame["params"]["_meta"] == {SUBSCRIPTION_ID: request_id}
    agreed = frame["params"]["notifications"]
    assert isinstance(agreed, dict)
    return agreed


def is_end(frame: dict[str, Any], request_id: Any = 1) -> bool:
    """Whether a frame is the answer to the request itself, and as it should be."""
    meta = frame["result"].pop("_meta")
    assert set(meta) == {SUBSCRIPTION_ID, "io.modelcontextprotocol/serverInfo"}
    assert (type(meta[SUBSCRIPTION_ID]), meta[SUBSCRIPTION_ID]) == (type(request_id), request_id)
    return frame == {"jsonrpc": "2.0", "id": request_id, "result": {"resultType": "complete"}}


def timeless(task: dict[str, Any]) -> dict[str, Any]:
    """A task without what depends on when a live one is looked at."""
    return {name: value for name, value in task.items() if name not in ("ttlMs", "pollIntervalMs")}


async def figure(port: int, name: str) -> float:
    """One of a process's own figures."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            return str(response.read().decode())

    found = re.search(rf"^{name} (\S+)$", await asyncio.to_thread(read), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for what must come to be."""
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.01)


@pytest.mark.row("H27", "T10")
@pytest.mark.must("S-02", "S-03", "S-07", "T-28", "T-29", "H-12")
@pytest.mark.row("H27", "T10")
async def test_the_acknowledgement_is_first_then_what_stands_then_each_change_then_the_end(
    user: Client, store: Stubs, bridge: Bridge
) -> None:
    task_id = await create(user)
    async with listening(bridge.port, task_id, capabilities=ASKS) as stream:
        assert await acknowledged(stream) == {"taskIds": [task_id]}
        seen = [await told(stream)]
        assert timeless(seen[-1]) == timeless(await shown(user, task_id))
        held = await lease(store)
        seen.append(await told(stream))
        await store.leases.ReportProgress(report(held, 1))
        seen.append(await told(stream))
        assert timeless(seen[-1]) == timeless(await shown(user, task_id))
        await store.leases.SuspendTask(suspend(held, questions=[question("a", FORM)]))
        seen.append(await told(stream))
        assert timeless(seen[-1]) == timeless(await shown(user, task_id))
        assert list(seen[-1]["inputRequests"]) == ["a"]
        params = {"taskId": task_id, "inputResponses": YES}
        assert (await user.ask("tasks/update", params, name=task_id, capabilities=ASKS)).status == 200
        seen.append(await told(stream))
        held = await lease(store)
        seen.append(await told(stream))
        await store.leases.CompleteTask(complete(held, b'{"content":[{"type":"text",\n"text":"done"}]}'))
        seen.append(await told(stream))
        assert seen[-1] == await shown(user, task_id), "a task that has ended is shown alike at any time"
        assert seen[-1]["result"]["content"] == [{"type": "text", "text": "done"}]
        (last,) = await stream.rest()
        assert is_end(last)
    states = [task["status"] for task in seen]
    assert states == ["working", "working", "working", "input_required", "working", "working", "completed"]
    assert [task["lastUpdatedAt"] for task in seen] == sorted(task["lastUpdatedAt"] for task in seen)


async def test_each_task_leaves_after_its_end_and_the_last_one_ends_the_stream(
    user: Client, store: Stubs, bridge: Bridge
) -> None:
    first, second, third = [await create(user) for _ in range(3)]
    await store.tasks.CancelTask(cancel(first, tenant_id="dev"))
    async with listening(bridge.port, first, second, third, second) as stream:
        assert await acknowledged(stream) == {"taskIds": [first, second, third]}
        states = {task["taskId"]: task["status"] for task in [await told(stream) for _ in range(3)]}
        assert states == {first: "cancelled", second: "working", third: "working"}
        held = [await lease(store), await lease(store)]
        assert {(await told(stream))["taskId"] for _ in held} == {second, third}
        for lease_ in held:
            await store.leases.FailTask(fail(lease_))
            task = await told(stream)
            assert (task["taskId"], task["status"], "error" in task) == (lease_.task_id, "failed", True)
        (last,) = await stream.rest()
        assert is_end(last)


@pytest.mark.row("H27")
@pytest.mark.must("S-05", "B-35")
@pytest.mark.parametrize("request_id", [0, 7, "", "0", "é" * 20, -(2**53)])
async def test_every_frame_carries_the_requests_id_with_its_type(
    user: Client, store: Stubs, bridge: Bridge, request_id: Any
) -> None:
    task_id = await create(user)
    await store.tasks.CancelTask(cancel(task_id, tenant_id="dev"))
    async with listening(bridge.port, task_id, request_id=request_id) as stream:
        await acknowledged(stream, request_id)
        await told(stream, request_id)
        (last,) = await stream.rest()
        assert is_end(last, request_id)


@pytest.mark.row("H27")
@pytest.mark.must("S-04")
async def test_only_what_was_asked_for_is_agreed_to_and_an_empty_agreement_ends_at_once(bridge: Bridge) -> None:
    unknown: dict[str, Any] = {
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["file:///x"],
        "later": 1,
    }
    async with listening(bridge.port, tools=False, capabilities={}, **unknown) as stream:
        assert await acknowledged(stream) == {}
        (last,) = await stream.rest()
        assert is_end(last)
    async with listening(bridge.port, tools=True, capabilities={}, **unknown) as stream:
        assert await acknowledged(stream) == {"toolsListChanged": True}
    async with listening(bridge.port, taskIds=[]) as stream:
        assert await acknowledged(stream) == {"taskIds": []}
        (last,) = await stream.rest()
        assert is_end(last)


@pytest.mark.row("T4", "T5")
async def test_ids_without_a_task_that_may_be_read_are_agreed_to_and_leave_in_silence(
    user: Client, store: Stubs, bridge: Bridge, clock: Clock
) -> None:
    expired = await create(user)
    await store.tasks.CancelTask(cancel(expired, tenant_id="dev"))
    await clock.advance(seconds=7_201)
    bob = types_pb2.Owner(issuer="dev", subject="bob")
    of_another = (await store.tasks.CreateTask(new_task(tenant_id="dev", owner=bob))).task.task_id
    dev = types_pb2.Owner(issuer="dev", subject="dev")
    of_another_tenant = (await store.tasks.CreateTask(new_task(tenant_id="other", owner=dev))).task.task_id
    unreadable = [expired, of_another, of_another_tenant, str(uuid4()), "", "no id", "é" * 128, str(uuid4()).upper()]
    for task_id in unreadable:
        async with listening(bridge.port, task_id) as stream:
            assert await acknowledged(stream) == {"taskIds": [task_id]}
            (last,) = await stream.rest()
            assert is_end(last)
    task_id = await create(user)
    async with listening(bridge.port, *unreadable, task_id) as stream:
        assert await acknowledged(stream) == {"taskIds": [*unreadable, task_id]}
        assert (await told(stream))["taskId"] == task_id
        await store.tasks.CancelTask(cancel(task_id, tenant_id="dev"))
        assert (await told(stream))["status"] == "cancelled"
        (last,) = await stream.rest()
        assert is_end(last)


@pytest.mark.parametrize(
    "notifications",
    [
        None, [], "x",
        {"taskIds": "x"}, {"taskIds": {"a": 1}}, {"taskIds": None}, {"taskIds": [1]}, {"taskIds": [None]},
        {"taskIds": [str(number) for number in range(101)]}, {"taskIds": ["same"] * 101}, {"taskIds": ["x" * 257]},
        {"toolsListChanged": 1}, {"toolsListChanged": "true"}, {"toolsListChanged": None},
    ],
)  # fmt: skip
async def test_a_wrong_filter_is_refused_before_the_stream(user: Client, notifications: Any) -> None:
    params = {} if notifications is None else {"notifications": notifications}
    answer = await user.ask("subscriptions/listen", params, capabilities=TASKS)
    assert (answer.status, answer.code, answer.headers["Content-Type"]) == (400, -32602, "application/json")


@pytest.mark.row("T13")
async def test_a_hundred_tasks_may_be_listened_to(bridge: Bridge) -> None:
    ids = [str(uuid4()) for _ in range(100)]
    async with listening(bridge.port, *ids) as stream:
        assert await acknowledged(stream) == {"taskIds": ids}
        (last,) = await stream.rest()
        assert is_end(last)


@pytest.mark.row("H14")
@pytest.mark.must("T-27", "T-41")
@pytest.mark.parametrize("ids", [[], ["x"], [str(uuid4())]])
async def test_tasks_without_the_extension_are_refused_before_the_stream(user: Client, ids: list[str]) -> None:
    answer = await user.ask("subscriptions/listen", {"notifications": {"taskIds": ids, "toolsListChanged": True}})
    assert (answer.status, answer.code, answer.headers["Content-Type"]) == (400, -32021, "application/json")
    assert answer.json["error"]["data"] == {"requiredCapabilities": TASKS}


@pytest.mark.must("H-13")
async def test_a_client_that_takes_no_stream_cannot_listen(user: Client) -> None:
    params: dict[str, Any] = {"notifications": {}}
    answer = await user.ask("subscriptions/listen", params, Accept="application/json")
    assert (answer.status, answer.code) == (406, -32600)
    for accept in ("*/*", "text/*", "text/event-stream", None):
        answer = await user.ask("subscriptions/listen", params, Accept=accept)
        assert (answer.status, len(answer.events)) == (200, 2), accept
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.row("H26")
async def test_what_the_client_cannot_answer_is_not_shown_and_the_task_goes_on(
    user: Client, store: Stubs, bridge: Bridge
) -> None:
    task_id = await create(user)
    held = await lease(store)
    async with listening(bridge.port, task_id) as stream:
        await acknowledged(stream)
        assert (await told(stream))["status"] == "working"
        await store.leases.SuspendTask(suspend(held, questions=[question("a", FORM)]))
        await user.ask("tasks/update", {"taskId": task_id, "inputResponses": YES}, name=task_id, capabilities=ASKS)
        assert (await told(stream))["status"] == "working"
        await store.tasks.CancelTask(cancel(task_id, tenant_id="dev"))
        assert (await told(stream))["status"] == "cancelled"


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

        await until(has_room)
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

    await until(is_forgotten)


async def test_one_who_comes_later_sees_what_the_others_wrote_before(user: Client, store: Stubs, bridge: Bridge) -> None:
    task_id = await create(user)
    async with listening(bridge.port, task_id) as early:
        await acknowledged(early)
        await told(early)
        held = await lease(store)
        for value in range(20):
            await store.leases.ReportProgress(report(held, value))
            stands = await shown(user, task_id)
            async with listening(bridge.port, task_id) as late:
                await acknowledged(late)
                assert (await told(late))["lastUpdatedAt"] >= stands["lastUpdatedAt"]


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

        await until(is_gone)


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
        async with asyncio.timeout(20):
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

            await until(is_cancelled)
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


@pytest.mark.row("T2")
async def test_any_bridge_tells_of_any_task(user: Client, store: Stubs, bridge: Bridge, routes: Path) -> None:
    async with bridging(store.address, routes) as other:
        task_id = await create(user)
        async with listening(bridge.port, task_id) as here, listening(other.port, task_id) as there:
            for stream in (here, there):
                await acknowledged(stream)
            assert timeless(await told(here)) == timeless(await told(there))
            await user.task("cancel", task_id)
            assert await told(here) == await told(there)


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
