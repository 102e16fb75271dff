"""Calls with an idempotency key are one task."""

import asyncio
import hashlib
from typing import Any

import pytest

from tests.bridge.client import Client
from tests.bridge.fake_store import FakeTaskStore
from tests.bridge.holding import DONE, hold


@pytest.mark.parametrize("where", ["header", "quoted", "meta", "both"])
async def test_a_repeated_call_with_its_key_finds_the_same_task(client: Client, fake: FakeTaskStore, where: str) -> None:
    key: dict[str, Any] = {}
    if where != "meta":
        key["Idempotency_Key"] = '"k-1"' if where == "quoted" else "k-1"
    if where in ("meta", "both"):
        key["meta_members"] = {"dev.tenure/idempotencyKey": "k-1"}
    answers = await asyncio.gather(*(client.call("task", {"a": 1}, tasks=True, **key) for _ in range(20)))
    assert len({answer.result["taskId"] for answer in answers}) == 1
    assert len(fake.tasks) == 1
    parts = b"".join(len(part).to_bytes(8, "big") + part for part in (b"dev", b"dev", b"k-1"))
    assert fake.created[0].request_id == hashlib.sha256(parts).hexdigest()


@pytest.mark.must("T-07")
async def test_no_handle_is_given_out_that_has_ended(client: Client, fake: FakeTaskStore) -> None:
    task_id = (await client.call("task", tasks=True, Idempotency_Key="k")).result["taskId"]
    await fake.complete(task_id, DONE)
    assert (await client.call("task", tasks=True, Idempotency_Key="k")).result["status"] == "completed"
    fake.now_ms += fake.created[0].contract.ttl_ms
    assert (await client.task("get", task_id)).code == -32602
    answer = await client.call("task", tasks=True, Idempotency_Key="k")
    assert (answer.status, answer.code) == (409, 40900)


@pytest.mark.row("T16")
async def test_a_key_that_was_used_for_another_call_is_refused(client: Client, fake: FakeTaskStore) -> None:
    await client.call("task", {"secret": "a"}, tasks=True, Idempotency_Key="k")
    for answer in (
        await client.call("task", {"secret": "b"}, tasks=True, Idempotency_Key="k"),
        await client.call("either", {"secret": "a"}, tasks=True, Idempotency_Key="k"),
    ):
        assert (answer.status, answer.code) == (409, 40900)
        assert b'"a"' not in answer.body
    assert len(fake.tasks) == 1


async def test_calls_without_a_key_are_different_calls(client: Client, fake: FakeTaskStore) -> None:
    for _ in range(2):
        await client.call("task", tasks=True)
    assert len({request.request_id for request in fake.created}) == 2


@pytest.mark.parametrize(
    "key",
    [
        {"Idempotency_Key": ""},
        {"Idempotency_Key": "x" * 257},
        {"meta_members": {"dev.tenure/idempotencyKey": 5}},
        {"Idempotency_Key": "a", "meta_members": {"dev.tenure/idempotencyKey": "b"}},
    ],
)
async def test_a_bad_key_is_refused(client: Client, fake: FakeTaskStore, key: dict[str, Any]) -> None:
    assert (await client.call("task", tasks=True, **key)).code == -32602
    assert not fake.created


async def test_a_held_call_may_be_come_back_to_with_its_key(client: Client, fake: FakeTaskStore) -> None:
    calling, task_id = await hold(client, fake, "held", Idempotency_Key="k")
    assert fake.created[0].abandon_after_ms == 7_200_000
    calling.cancel()
    fake.watching.clear()
    again, same = await hold(client, fake, "held", Idempotency_Key="k")
    assert same == task_id
    await fake.complete(task_id, DONE)
    assert (await again).result["content"][0]["text"] == "done"
    assert not fake.attached


async def test_a_handle_for_a_task_that_was_held_before_keeps_it_alive(client: Client, fake: FakeTaskStore) -> None:
    calling, task_id = await hold(client, fake, "either", Idempotency_Key="k")
    answer = await client.call("either", tasks=True, Idempotency_Key="k")
    assert answer.result["taskId"] == task_id
    assert fake.attached == [(task_id, 0)]
    await fake.complete(task_id, DONE)
    await calling
