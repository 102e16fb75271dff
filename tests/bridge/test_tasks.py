"""`tasks/get`, `tasks/update`, `tasks/cancel`. Contract, sections 3 and 5; security checklist, T4 to T6, T11, T14."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.client import TASKS, Client, client_of, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import bridge_on, started

ACTIONS = ["get", "update", "cancel"]
EMPTY = {"resultType", "_meta"}


async def create(client: Client) -> str:
    task_id = (await client.call("task", tasks=True)).result["taskId"]
    assert isinstance(task_id, str)
    return task_id


@pytest.mark.must("T-10", "T-13", "T-16", "T-37")
async def test_a_task_is_read_as_it_stands_at_that_moment(client: Client, fake: FakeTaskStore) -> None:
    task_id = await create(client)
    result = (await client.task("get", task_id)).result
    assert set(result) == {*EMPTY, "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
    assert (result["resultType"], result["status"]) == ("complete", "working")
    fake.now_ms += 60_000
    await fake.complete(task_id, b'{"content":[],"isError":true}')
    result = (await client.task("get", task_id)).result
    outcome = {"resultType": "complete", "content": [], "isError": True}
    assert (result["status"], result["result"]) == ("completed", outcome)
    assert result["ttlMs"] == 60_000 + 7_200_000


async def test_polls_are_asked_for_between_the_bounds_of_the_route(client: Client, fake: FakeTaskStore) -> None:
    task_ids = [(await client.call(tool, tasks=True)).result["taskId"] for tool in ("watched", "task")]
    intervals = []
    for _ in range(4):
        intervals.append([(await client.task("get", task_id)).result["pollIntervalMs"] for task_id in task_ids])
        fake.now_ms += 40_000
    assert intervals == [[2_000, 2_000], [4_000, 4_000], [5_000, 8_000], [5_000, 12_000]]


@pytest.mark.must("T-13", "T-38")
async def test_a_result_comes_back_byte_for_byte(client: Client, fake: FakeTaskStore) -> None:
    task_id = await create(client)
    handed_over = b'{"content":[],"structuredContent":{"z":12345678901234567890123,"a":"\\u0000\\/","a2":1.0}}'
    await fake.complete(task_id, handed_over)
    assert b'"result":{"resultType":"complete",' + handed_over[1:] + b"}" in (await client.task("get", task_id)).body


@pytest.mark.row("T7")
@pytest.mark.must("T-15", "T-36")
async def test_a_failed_task_has_its_error_inside(client: Client, fake: FakeTaskStore) -> None:
    task_id = await create(client)
    await fake.fail(task_id, -32603, "out of paper")
    result = (await client.task("get", task_id)).result
    assert (result["status"], result["error"]) == ("failed", {"code": -32603, "message": "out of paper"})
    assert "result" not in result


@pytest.mark.row("H14")
@pytest.mark.must("B-13", "B-29", "B-30", "T-33")
@pytest.mark.parametrize("action", ACTIONS)
async def test_a_client_that_did_not_declare_tasks_is_told_before_anything_is_looked_up(
    client: Client, fake: FakeTaskStore, action: str
) -> None:
    task_id = await create(client)
    for known in (task_id, "unknown"):
        answer = await client.task(action, known, capabilities={"extensions": {"other/x": {}}})
        assert (answer.status, answer.code) == (400, -32021)
        assert answer.json["error"]["data"] == {"requiredCapabilities": TASKS}
    assert not fake.read


@pytest.mark.row("T5", "T6")
@pytest.mark.must("T-20", "T-25", "T-30", "T-31", "T-40")
@pytest.mark.parametrize("action", ACTIONS)
async def test_ids_that_are_not_the_callers_are_all_alike(client: Client, fake: FakeTaskStore, action: str) -> None:
    foreign_owner, foreign_tenant, expired = [await create(client) for _ in range(3)]
    fake.tasks[foreign_owner].contract.owner.subject = "somebody else"
    fake.tasks[foreign_tenant].tenant_id = "other"
    await fake.complete(expired, b"{}")
    fake.now_ms += 7_200_000
    unknown = "00000000-0000-4000-8000-000000000000"
    malformed = ["", "x", "../..", unknown.upper(), unknown[:-1], "é\u0000", "x" * 100_000, unknown + "\n"]
    bodies, headers, reads = set(), set(), []
    for task_id in (foreign_owner, foreign_tenant, expired, unknown, *malformed):
        before = len(fake.read)
        answer = await client.task(action, task_id, name=None)
        bodies.add((answer.status, answer.body))
        headers.add(tuple(sorted((name, value) for name, value in answer.headers.items() if name != "Date")))
        reads.append(len(fake.read) - before)
    assert bodies == {(400, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Task not found"}}')}
    assert len(headers) == 1
    assert set(reads) == {1}
    assert not fake.cancelled


@pytest.mark.must("T-30", "T-31")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("task_id", [None, 5, {}, []])
async def test_an_id_is_a_string(client: Client, action: str, task_id: Any) -> None:
    params = {"taskId": task_id, "inputResponses": {}, "_meta": meta(TASKS)}
    body = {"jsonrpc": "2.0", "id": 1, "method": f"tasks/{action}", "params": params}
    answer = await client.send(body, headers_for(f"tasks/{action}"))
    assert answer.code == -32602
    assert answer.json["error"]["message"] != "Task not found"


@pytest.mark.row("H9", "T14")
@pytest.mark.must("H-36")
@pytest.mark.parametrize("action", ACTIONS)
async def test_a_name_that_differs_is_refused_and_a_missing_one_tolerated(client: Client, action: str) -> None:
    task_id = await create(client)
    answer = await client.task(action, task_id, name="00000000-0000-4000-8000-000000000000")
    assert (answer.status, answer.code) == (400, -32020)
    assert (await client.task(action, task_id, name=None)).status == 200


@pytest.mark.row("H9")
@pytest.mark.must("H-22")
async def test_a_strict_bridge_insists_on_the_name(client: Client, routes: Path, fake: FakeTaskStore) -> None:
    task_id = await create(client)
    strict = bridge_on(routes, fake=fake, strict_headers=True)
    async with started(strict), client_of(strict) as user:
        assert (await user.task("get", task_id, name=None)).code == -32020
        assert (await user.task("get", task_id)).status == 200


@pytest.mark.row("T9")
@pytest.mark.must("T-14", "T-24", "T-26")
async def test_a_cancel_is_acknowledged_with_nothing_in_it(client: Client, fake: FakeTaskStore) -> None:
    task_id = await create(client)
    assert set((await client.task("cancel", task_id)).result) == EMPTY
    assert fake.cancelled == [task_id]
    assert (await client.task("get", task_id)).result["status"] == "cancelled"


@pytest.mark.row("T9")
@pytest.mark.must("C-06", "T-24")
async def test_a_cancel_of_a_task_that_ended_is_acknowledged_and_changes_nothing(client: Client, fake: FakeTaskStore) -> None:
    task_id = await create(client)
    await fake.complete(task_id, b'{"content":[]}')
    assert set((await client.task("cancel", task_id)).result) == EMPTY
    assert not fake.cancelled
    assert (await client.task("get", task_id)).result["status"] == "completed"


@pytest.mark.row("T8", "T9")
@pytest.mark.must("T-19", "T-21", "T-22")
async def test_answers_to_no_question_are_acknowledged_and_change_nothing(client: Client, fake: FakeTaskStore) -> None:
    task_id = await create(client)
    before = (await client.task("get", task_id)).body
    params = {"taskId": task_id, "inputResponses": {"unknown-key": {"action": "accept"}, "": None}}
    answer = await client.ask("tasks/update", params, name=task_id, capabilities=TASKS)
    assert set(answer.result) == EMPTY
    assert (await client.task("get", task_id)).body == before


@pytest.mark.parametrize("responses", [None, [], "x", 5])
async def test_input_responses_are_an_object(client: Client, responses: Any) -> None:
    task_id = await create(client)
    params = {"taskId": task_id, "inputResponses": responses}
    assert (await client.ask("tasks/update", params, name=task_id, capabilities=TASKS)).code == -32602
    assert (await client.ask("tasks/update", {"taskId": task_id}, name=task_id, capabilities=TASKS)).code == -32602


@pytest.mark.row("T12")
async def test_polling_far_too_fast_is_slowed_down_and_never_answered_wrongly(client: Client) -> None:
    task_id = await create(client)
    answers = [await client.task("get", task_id) for _ in range(40)]
    assert all(answer.status == 200 for answer in answers[:10])
    refused = [answer for answer in answers if answer.status == 429]
    assert refused
    assert {(answer.code, answer.headers["Retry-After"]) for answer in refused} == {(42900, "1")}
    assert {json.dumps(answer.result["status"]) for answer in answers if answer.status == 200} == {'"working"'}
    assert (await client.task("cancel", task_id)).status == 200


@pytest.mark.row("T12")
async def test_unknown_ids_are_slowed_down_all_the_same(client: Client) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    assert (await client.ask("tasks/get", {"taskId": unknown}, name=unknown, capabilities=TASKS)).code == -32602
    answers = [await client.task("get", unknown) for _ in range(40)]
    assert 429 in {answer.status for answer in answers}
