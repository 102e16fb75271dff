"""Calls in several rounds over a real store, with a worker that asks over the API. Contract, sections 4, 5, 10.1, 10.2,
10.4, 10.7, 10.9, 10.12 and 10.13; cases 25 and 26; security checklist H25."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from tests.bridge.client import TASKS, Answer, Client
from tests.conftest import Clock, Stubs, snapshots, started
from tests.store.builders import claim, complete, question, report, report_at_once, suspend

ROUTES = """
version: 1
tenants:
  dev:
    tools:
      - {name: held, workflow: w, task: optional, input_schema: {type: object}, answer_within: 10m}
      - {name: other, workflow: w, task: optional, input_schema: {type: object}}
      - {name: hasty, workflow: w, task: never, call_timeout: 10ms, max_detaches: 2, input_schema: {type: object}}
      - {name: soon, workflow: w, task: optional, inline_wait: 2s, input_schema: {type: object}}
      - name: greeting
        workflow: w
        task: optional
        input_schema: {type: object, properties: {n: {type: integer}}}
        preflight:
          - key: who
            method: elicitation/create
            params: {message: Who, requestedSchema: {type: object, properties: {name: {type: string}}, required: [name]}}
          - {key: where, method: roots/list}
"""
FORM: dict[str, Any] = {"elicitation": {}}
BOTH = {**FORM, "roots": {}}
ANSWERING_TASKS = {**FORM, **TASKS}
PARAMS = b'{ "message":"Go?", "requestedSchema":{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}}'
TOKEN = {"progressToken": "p"}
YES = {"action": "accept", "content": {"ok": True}}
KEYS = [base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2)]


@pytest.fixture
def config(store: Stubs, tmp_path: Path) -> Config:
    """What the bridge is told."""
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES)
    return Config(
        routes=str(path), port=0, admin_port=0, drain_seconds=0, store=store.address, state_keys=(KEYS[0],), dev_tenant="dev"
    )


@pytest.fixture
async def real(config: Config) -> AsyncIterator[Bridge]:
    """A bridge over the real store."""
    async with started(Bridge(config)) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def user(real: Bridge, session: aiohttp.ClientSession) -> Client:
    """A client of that bridge."""
    return Client(session, real.port)


async def call(
    user: Client,
    tool: str = "held",
    arguments: Any = None,
    *,
    capabilities: Any = FORM,
    state: Any = None,
    responses: Any = None,
    **others: Any,
) -> Answer:
    """One round of a call."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments or {}}
    if state is not None:
        params["requestState"] = state
    if responses is not None:
        params["inputResponses"] = responses
    return await user.ask("tools/call", params, name=tool, capabilities=capabilities, **others)


async def leased(store: Stubs) -> leases_pb2.LeasedTask:
    """The task, taken by a worker as soon as there is one."""
    (task,) = (await store.leases.LeaseTasks(claim(workflow="w", wait_ms=20_000))).tasks
    return task


async def ask(store: Stubs, *names: str, timeout_ms: int = 0, params: bytes = PARAMS) -> str:
    """The worker takes the task and asks. Returns the task's id."""
    task = await leased(store)
    questions = [question(name, params) for name in names]
    await store.leases.SuspendTask(suspend(task.lease, questions=questions, timeout_ms=timeout_ms))
    return task.lease.task_id


async def asked(user: Client, store: Stubs, *names: str, **others: Any) -> dict[str, Any]:
    """The first round of a call whose work asks."""
    calling = asyncio.create_task(call(user))
    await ask(store, *names, **others)
    return (await calling).result


async def finish(store: Stubs, data: bytes = b'{"content":[]}') -> leases_pb2.LeasedTask:
    """The worker takes the task and ends it."""
    task = await leased(store)
    await store.leases.CompleteTask(complete(task.lease, data))
    return task


async def count(store: Stubs) -> int:
    return len((await store.tasks.ListTasks(tasks_pb2.ListTasksRequest(tenant_id="dev"))).tasks)


async def state_of(store: Stubs, task_id: str) -> types_pb2.TaskState.ValueType:
    return (await store.tasks.GetTask(tasks_pb2.GetTaskRequest(tenant_id="dev", task_id=task_id))).task.state


@pytest.mark.row("T8")
@pytest.mark.must("T-11", "T-12", "T-19", "T-21", "T-22")
async def test_a_task_that_asks_shows_each_open_question_as_it_was_asked(user: Client, store: Stubs) -> None:
    task_id = (await user.call("held", capabilities=ANSWERING_TASKS)).result["taskId"]
    await ask(store, "a", "b")
    answer = await user.task("get", task_id, capabilities=ANSWERING_TASKS)
    assert answer.result["status"] == "input_required"
    shown = b'"inputRequests":{"a":{"method":"elicitation/create","params":%s},"b":{"method"' % PARAMS
    assert shown in answer.body
    params = {"taskId": task_id, "inputResponses": {"a": YES, "nobody-asked": 5}}
    updated = await user.ask("tasks/update", params, name=task_id, capabilities=ANSWERING_TASKS)
    assert set(updated.result) == {"resultType", "_meta"}
    result = (await user.task("get", task_id, capabilities=ANSWERING_TASKS)).result
    assert (result["status"], list(result["inputRequests"])) == ("input_required", ["b"])
    params["inputResponses"] = {"a": {"action": "decline"}, "b": {"action": "cancel"}}
    assert (await user.ask("tasks/update", params, name=task_id, capabilities=ANSWERING_TASKS)).status == 200
    woken = await finish(store)
    assert [(one.key, json.loads(one.response.data)) for one in woken.wake.input.answers] == [
        ("a", YES),
        ("b", {"action": "cancel"}),
    ]
    result = (await user.task("get", task_id, capabilities=ANSWERING_TASKS)).result
    assert (result["status"], "inputRequests" in result) == ("completed", False)


async def test_each_report_is_told_in_one_round_only(user: Client, store: Stubs, database: asyncpg.Connection) -> None:
    calling = asyncio.create_task(call(user, meta_members=TOKEN))
    held = (await leased(store)).lease
    await store.leases.ReportProgress(report(held, 1))
    await report_at_once(database, held, 2)
    await store.leases.SuspendTask(suspend(held, questions=[question("a", PARAMS)]))
    *told, paused = (await calling).events
    assert [event["params"]["progress"] for event in told] == [1, 2]
    state = paused["result"]["requestState"]
    calling = asyncio.create_task(call(user, state=state, responses={"a": YES}, meta_members=TOKEN))
    held = (await leased(store)).lease
    await report_at_once(database, held, 3, 4)
    await store.leases.CompleteTask(complete(held, b'{"content":[]}'))
    *told, ended = (await calling).events
    assert [event["params"]["progress"] for event in told] == [3, 4]
    assert ended["result"]["content"] == []


@pytest.mark.must("R-13", "R-14", "T-34")
async def test_one_bad_answer_names_its_place_and_nothing_is_stored(user: Client, store: Stubs) -> None:
    task_id = (await user.call("held", capabilities=ANSWERING_TASKS)).result["taskId"]
    await ask(store, "a", "b")
    params = {"taskId": task_id, "inputResponses": {"a": YES, "b": {"action": "accept", "content": {"ok": "yes"}}}}
    refused = await user.ask("tasks/update", params, name=task_id, capabilities=ANSWERING_TASKS)
    assert refused.code == -32602
    assert "inputResponses.b.content.ok" in refused.json["error"]["message"]
    result = (await user.task("get", task_id, capabilities=ANSWERING_TASKS)).result
    assert list(result["inputRequests"]) == ["a", "b"]


@pytest.mark.row("H14", "H26")
@pytest.mark.must("B-29", "R-11")
async def test_a_request_that_does_not_declare_what_a_task_asks_is_not_shown_it(user: Client, store: Stubs) -> None:
    task_id = (await user.call("held", capabilities=ANSWERING_TASKS)).result["taskId"]
    assert (await user.task("get", task_id)).result["status"] == "working"
    await ask(store, "a")
    answer = await user.task("get", task_id)
    assert (answer.status, answer.code) == (400, -32021)
    assert answer.json["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


async def test_a_task_that_asks_within_the_inline_wait_is_answered_with_its_handle(user: Client, store: Stubs) -> None:
    calling = asyncio.create_task(user.call("soon", capabilities=ANSWERING_TASKS))
    await ask(store, "a")
    result = (await calling).result
    assert (result["resultType"], result["status"], "inputRequests" in result) == ("task", "input_required", False)


@pytest.mark.must("R-01", "R-09", "R-10")
async def test_a_held_call_that_asks_goes_on_with_the_same_task(user: Client, store: Stubs) -> None:
    first = await asked(user, store, "confirm")
    assert (first["resultType"], first["inputRequests"]["confirm"]["params"]["message"]) == ("input_required", "Go?")
    calling = asyncio.create_task(call(user, state=first["requestState"], responses={"confirm": YES}))
    await ask(store, "again")
    second = (await calling).result
    assert second["requestState"] != first["requestState"]
    calling = asyncio.create_task(call(user, state=second["requestState"], responses={"again": YES}))
    woken = await finish(store, b'{"content":[{"type":"text","text":"done"}]}')
    assert woken.wake.input.keys == ["again"]
    result = (await calling).result
    assert (result["resultType"], result["content"][0]["text"]) == ("complete", "done")
    assert await count(store) == 1
    replayed = (await call(user, state=first["requestState"], responses={"confirm": {"action": "decline"}})).result
    assert replayed["content"] == result["content"]


@pytest.mark.must("R-13", "R-15", "R-16")
async def test_a_round_with_other_answers_or_none_asks_again(user: Client, store: Stubs) -> None:
    state = (await asked(user, store, "confirm"))["requestState"]
    for responses in ({}, {"other": YES}):
        result = (await call(user, state=state, responses=responses)).result
        assert (result["resultType"], list(result["inputRequests"])) == ("input_required", ["confirm"])
    refused = await call(user, state=state, responses={"confirm": {"action": "maybe"}})
    assert (refused.status, refused.code) == (400, -32602)
    assert "inputResponses.confirm.action" in refused.json["error"]["message"]


@pytest.mark.row("H25")
@pytest.mark.must("R-05", "R-08")
async def test_a_state_is_good_for_its_call_alone(
    user: Client, store: Stubs, session: aiohttp.ClientSession, config: Config
) -> None:
    state = (await asked(user, store, "confirm"))["requestState"]
    middle = len(state) // 2
    changed = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
    for answer in (
        await call(user, state=changed, responses={"confirm": YES}),
        await call(user, state="", responses={"confirm": YES}),
        await call(user, state="x" * 300_000, responses={"confirm": YES}),
        await call(user, state="ä", responses={"confirm": YES}),
        await call(user, "other", state=state, responses={"confirm": YES}),
        await call(user, arguments={"a": 1}, state=state, responses={"confirm": YES}),
    ):
        assert (answer.status, answer.code) == (400, -32602)
        assert "requestState" in answer.json["error"]["message"]
    others = Bridge(Config(**{**vars_of(config), "state_keys": (KEYS[1],)}))
    rotated = Bridge(Config(**{**vars_of(config), "state_keys": (KEYS[1], KEYS[0])}))
    await others.start()
    await rotated.start()
    assert (await call(Client(session, others.port), state=state)).code == -32602
    assert (await call(Client(session, rotated.port), state=state)).result["resultType"] == "input_required"
    await others.stop()
    await rotated.stop()
    assert await count(store) == 1


@pytest.mark.row("H25")
@pytest.mark.must("R-07", "R-12")
async def test_a_state_ends_and_its_task_with_it(user: Client, store: Stubs, clock: Clock) -> None:
    calling = asyncio.create_task(call(user))
    task_id = await ask(store, "confirm")
    state = (await calling).result["requestState"]
    await clock.advance(seconds=590)
    state = (await call(user, state=state)).result["requestState"]
    await clock.advance(seconds=590)
    assert await state_of(store, task_id) == types_pb2.TASK_STATE_WAITING
    await clock.advance(seconds=20)
    assert (await call(user, state=state, responses={"confirm": YES})).code == -32602
    async with asyncio.timeout(60):
        async for task in snapshots(store, "dev", task_id):
            if task.HasField("ended_at"):
                assert task.state == types_pb2.TASK_STATE_CANCELLED
                break


async def test_a_state_ends_no_later_than_its_question(user: Client, store: Stubs, clock: Clock) -> None:
    state = (await asked(user, store, "confirm", timeout_ms=60_000))["requestState"]
    await clock.advance(seconds=61)
    assert (await call(user, state=state, responses={"confirm": YES})).code == -32602


@pytest.mark.row("H26")
@pytest.mark.must("R-11")
async def test_a_client_is_asked_only_what_it_declared(user: Client, store: Stubs) -> None:
    calling = asyncio.create_task(call(user, capabilities={"sampling": {}}))
    await ask(store, "confirm")
    answer = await calling
    assert (answer.status, answer.code) == (400, -32021)


@pytest.mark.must("C-05", "K-06", "R-10")
async def test_work_that_takes_too_long_is_called_again_a_few_times_and_then_ended(user: Client, store: Stubs) -> None:
    first = (await call(user, "hasty")).result
    assert set(first) == {"resultType", "_meta", "requestState"}
    second = (await call(user, "hasty", state=first["requestState"])).result
    last = (await call(user, "hasty", state=second["requestState"])).result
    assert (last["isError"], last["content"][0]["text"]) == (True, "timed out after 0.01 s")
    again = (await call(user, "hasty", state=first["requestState"])).result
    assert again["content"][0]["text"] == "cancelled"
    assert await count(store) == 1


async def test_a_bridge_that_stops_hands_its_calls_to_the_next(
    real: Bridge, user: Client, store: Stubs, session: aiohttp.ClientSession, config: Config
) -> None:
    calling = asyncio.create_task(call(user))
    task = await leased(store)
    await real.stop()
    state = (await calling).result["requestState"]
    async with started(Bridge(config)) as following:
        calling = asyncio.create_task(call(Client(session, following.port), state=state))
        await store.leases.CompleteTask(complete(task.lease, b'{"content":[]}'))
        assert (await calling).result["content"] == []


@pytest.mark.must("R-15")
async def test_an_answer_that_comes_before_its_question_is_used_and_one_that_fits_nothing_is_not(
    user: Client, store: Stubs
) -> None:
    early = {"confirm": YES, "bad": {"action": 5}, "": YES, "\0": YES}
    calling = asyncio.create_task(call(user, responses=early))
    task = await leased(store)
    assert task.early_answers == 1
    asking = suspend(task.lease, questions=[question("confirm", PARAMS)], fitting=["confirm"])
    await store.leases.SuspendTask(asking)
    woken = await finish(store)
    assert [one.key for one in woken.wake.input.answers] == ["confirm"]
    assert (await calling).result["content"] == []
    refused = await call(user, responses={f"k{number}": YES for number in range(17)})
    assert refused.code == -32602


@pytest.mark.must("R-01", "R-09", "R-15", "R-16", "T-09")
async def test_what_is_asked_first_makes_no_task_until_all_of_it_is_answered(user: Client, store: Stubs) -> None:
    undeclared = await call(user, "greeting")
    assert undeclared.json["error"]["data"] == {"requiredCapabilities": {"roots": {}}}
    first = (await call(user, "greeting", {"n": 1}, capabilities={**BOTH, **TASKS})).result
    assert (first["resultType"], list(first["inputRequests"])) == ("input_required", ["who", "where"])
    bad = await call(
        user,
        "greeting",
        {"n": 1},
        capabilities=BOTH,
        state=first["requestState"],
        responses={"who": {"action": "accept", "content": {}}},
    )
    assert "inputResponses.who.content" in bad.json["error"]["message"]
    name = {"action": "accept", "content": {"name": "Al"}}
    second = (
        await call(
            user, "greeting", {"n": 1}, capabilities=BOTH, state=first["requestState"], responses={"who": name, "extra": 5}
        )
    ).result
    assert list(second["inputRequests"]) == ["where"]
    assert await count(store) == 0
    roots = {"roots": [{"uri": "file:///x"}]}
    last: dict[str, Any] = {"capabilities": {**BOTH, **TASKS}, "state": second["requestState"], "responses": {"where": roots}}
    created = (await call(user, "greeting", {"n": 1}, **last)).result
    assert (created["resultType"], "requestState" in created, "inputRequests" in created) == ("task", False, False)
    assert (await call(user, "greeting", {"n": 1}, **last)).result["taskId"] == created["taskId"]
    assert await count(store) == 1
    given = await finish(store)
    assert json.loads(given.input.data) == {"n": 1, "dev.tenure/preflight": {"who": name, "where": roots}}


async def test_a_key_that_was_asked_first_is_not_used_again(user: Client, store: Stubs) -> None:
    answers = {"who": {"action": "accept", "content": {"name": "Al"}}, "where": {"roots": []}}
    both: dict[str, Any] = {"capabilities": BOTH, "responses": answers}
    first = (await call(user, "greeting", capabilities=BOTH)).result
    calling = asyncio.create_task(call(user, "greeting", state=first["requestState"], **both))
    await ask(store, "who", "why")
    assert list((await calling).result["inputRequests"]) == ["who#2", "why"]


async def test_what_is_asked_first_is_not_asked_of_arguments_that_are_wrong(user: Client, store: Stubs) -> None:
    result = (await call(user, "greeting", {"n": "x"}, capabilities=BOTH)).result
    assert result["isError"] is True
    forged = (await call(user, "greeting", {"dev.tenure/preflight": {}}, capabilities=BOTH)).result
    assert "dev.tenure/preflight" in forged["content"][0]["text"]
    big = {"action": "accept", "content": {"name": "x" * 70_000}}
    assert (await call(user, "greeting", capabilities=BOTH, responses={"who": big})).code == -32602
    assert await count(store) == 0


def vars_of(config: Config) -> dict[str, Any]:
    """The settings, to make others of."""
    return {name: getattr(config, name) for name in Config.__dataclass_fields__}
