"""At every point of the bridge where what was done and its answer may come apart, they do; asked again, it is done once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import asyncpg
import pytest
from taskstore.v1 import leases_pb2

from mcp_bridge.fault_points import AFTER_WRITE, BEFORE_WRITE, LEGACY, POINTS, STORE_METHODS
from mcp_bridge.wire.mcp import IDEMPOTENCY_KEY
from store_service.client import Context, Worker
from tests.bridge.client import TASKS, Answer, Client, client_of
from tests.bridge.legacy import Legacy
from tests.bridge.listening import listening
from tests.conftest import Stubs, bridge_on, started
from tests.databases import EMPTY
from tests.robustness.points import Armoury
from tests.store.builders import claim, question, suspend, until

ROUTES: Final = """
version: 1
tenants:
  dev:
    tools:
      - {name: work, workflow: nobody, task: required, input_schema: {type: object}}
      - {name: soon, workflow: nobody, task: optional, inline_wait: 1ms, input_schema: {type: object}}
      - {name: echo, workflow: echo, task: never, input_schema: {type: object}}
"""
LOST: Final = (aiohttp.ClientError, ConnectionError)
CREATED_TOGETHER: Final = 40


@dataclass(frozen=True)
class There:
    """A bridge that may go wrong, its client, and the store behind it."""

    client: Client
    store: Stubs
    armoury: Armoury
    database: asyncpg.Connection

    async def create(self, tool: str = "work", *, key: str = "k") -> Answer:
        """A call that becomes a task, once for each key."""
        return await self.client.call(tool, tasks=True, meta_members={IDEMPOTENCY_KEY: key})

    async def tasks(self) -> int:
        """How many tasks there are."""
        count: int = await self.database.fetchval("SELECT count(*) FROM tenure.task")
        return count


@pytest.fixture
async def there(store: Stubs, database: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[There]:
    armoury = Armoury(tmp_path / "faults")
    (tmp_path / "routes.yaml").write_text(ROUTES)
    bridge = bridge_on(tmp_path / "routes.yaml", store=store.address, fault_points=str(armoury.folder), store_retry_seconds=10)
    async with started(bridge), client_of(bridge) as client:
        yield There(client, store, armoury, database)


@pytest.fixture
async def worker(store: Stubs) -> AsyncIterator[Worker]:
    running = Worker(store.address, tenants=["dev"])

    @running.workflow("echo", version=1)
    async def echo(_: Context, args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [], "structuredContent": args}

    async with running:
        yield running


async def _asks_of(there: There) -> str:
    """A task that waits for an answer to its one question."""
    task_id: str = (await there.create()).result["taskId"]
    [leased] = (await there.store.leases.LeaseTasks(claim(workflow="nobody"))).tasks
    asked: leases_pb2.SuspendTaskRequest = suspend(leased.lease, questions=[question("sure")])
    await there.store.leases.SuspendTask(asked)
    return task_id


def _answered(there: There, task_id: str) -> Awaitable[Answer]:
    responses = {"sure": {"action": "accept", "content": {"ok": True}}}
    params = {"taskId": task_id, "inputResponses": responses}
    return there.client.ask("tasks/update", params, name=task_id, capabilities=TASKS)


Way = Callable[[There], Awaitable[Callable[[], Awaitable[Answer]]]]


async def _create(there: There) -> Callable[[], Awaitable[Answer]]:
    return there.create


async def _create_many(there: There) -> Callable[[], Awaitable[Answer]]:
    async def all_of_them() -> Answer:
        answers = await asyncio.gather(*(there.create(key=str(number)) for number in range(CREATED_TOGETHER)))
        assert {answer.status for answer in answers} == {200}
        return answers[0]

    return all_of_them


async def _attach(there: There) -> Callable[[], Awaitable[Answer]]:
    return lambda: there.create("soon")


async def _cancel(there: There) -> Callable[[], Awaitable[Answer]]:
    task_id: str = (await there.create()).result["taskId"]
    return lambda: there.client.task("cancel", task_id)


async def _get(there: There) -> Callable[[], Awaitable[Answer]]:
    task_id: str = (await there.create()).result["taskId"]
    return lambda: there.client.task("get", task_id)


async def _answer(there: There) -> Callable[[], Awaitable[Answer]]:
    task_id = await _asks_of(there)
    return lambda: _answered(there, task_id)


WAYS: Final[dict[str, Way]] = {
    "CreateTask": _create,
    "CreateTasks": _create_many,
    "CancelTask": _cancel,
    "AnswerInputs": _answer,
    "AttachTask": _attach,
    "tools.call": _create,
    "tasks.get": _get,
    "tasks.update": _answer,
    "tasks.cancel": _cancel,
}
"""How each call, and each method of MCP, is made; all of it by clients of now."""


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(one, marks=[pytest.mark.batching("it is how creations travel together")] if one == "CreateTasks" else [])
        for one in sorted(STORE_METHODS)
    ],
)
async def test_a_call_to_the_store_that_is_lost_is_made_again_and_its_caller_notices_nothing(there: There, method: str) -> None:
    for point in (f"bridge.{method}.before_call", f"bridge.{method}.after_answer"):
        ask = await WAYS[method](there)
        there.armoury.arm(point, "raise")
        assert (await ask()).status == 200
        assert there.armoury.fired[point] == 1
        tasks = await there.tasks()
        assert tasks == (CREATED_TOGETHER if method == "CreateTasks" else 1)
        await there.database.execute(EMPTY)


@pytest.mark.parametrize("method", ["tools.call", "tasks.get", "tasks.update", "tasks.cancel"])
async def test_an_answer_that_is_lost_may_be_asked_for_again(there: There, method: str) -> None:
    point = f"bridge.modern.{method}.before_answer"
    ask = await WAYS[method](there)
    there.armoury.arm(point, "raise")
    with pytest.raises(LOST):
        await ask()
    assert there.armoury.fired[point] == 1
    assert (await ask()).status == 200
    assert await there.tasks() == 1


@pytest.mark.usefixtures("worker")
async def test_a_held_call_of_an_earlier_client_that_is_lost_ends_its_work_all_the_same(there: There) -> None:
    earlier = Legacy(there.client)
    await earlier.initialize()
    there.armoury.arm("bridge.legacy.tools.call.before_answer", "raise")
    with pytest.raises(LOST):
        await earlier.call("echo", {"a": 1})

    async def is_completed() -> bool:
        states = await there.database.fetch("SELECT state FROM tenure.task_state")
        return [row["state"] for row in states] == ["COMPLETED"]

    await until(is_completed, "the work is done")
    assert (await earlier.call("echo", {"a": 1}, request_id=2)).result["structuredContent"] == {"a": 1}


@pytest.mark.parametrize("point", [BEFORE_WRITE, AFTER_WRITE])
async def test_who_listens_and_is_cut_off_at_a_write_listens_again(there: There, point: str) -> None:
    task_id: str = (await there.create()).result["taskId"]
    there.armoury.arm(point, "raise")
    with pytest.raises((EOFError, OSError)):
        await _listen_until_cut_off(there, task_id)
    assert there.armoury.fired[point] == 1
    async with listening(there.client.port, task_id) as stream:
        assert (await stream.frame())["method"] == "notifications/subscriptions/acknowledged"
        await there.client.task("cancel", task_id)
        while (await stream.frame())["params"]["status"] != "cancelled":
            pass


async def _listen_until_cut_off(there: There, task_id: str) -> None:
    async with listening(there.client.port, task_id) as stream:
        while True:
            await stream.frame()


def test_each_point_of_the_bridge_is_reached_by_some_test_here() -> None:
    calls = {f"bridge.{method}.{at}" for method in STORE_METHODS for at in ("before_call", "after_answer")}
    modern = {f"bridge.modern.{method}.before_answer" for method in WAYS.keys() - STORE_METHODS}
    legacy = {f"bridge.legacy.{method.replace('/', '.')}.before_answer" for method in LEGACY}
    assert calls | modern | legacy | {BEFORE_WRITE, AFTER_WRITE} == POINTS
