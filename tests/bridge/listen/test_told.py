"""What a subscription agrees to and tells. Contract, sections 6 and 10.20; security checklist H27, T4, T5, T10, T13."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from taskstore.v1 import types_pb2

from mcp_bridge.app import Bridge
from tests.bridge.client import TASKS, Client
from tests.bridge.listening import (
    ASKS,
    FORM,
    YES,
    acknowledged,
    bridging,
    create,
    is_end,
    lease,
    listening,
    shown,
    timeless,
    told,
)
from tests.conftest import Clock, Stubs
from tests.store.builders import cancel, complete, fail, new_task, question, report, suspend


@pytest.mark.row("H27", "T10")
@pytest.mark.must("S-02", "S-03", "S-07", "T-28", "T-29", "H-12")
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
