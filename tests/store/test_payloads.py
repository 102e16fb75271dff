"""Payloads come back byte for byte, at their full size, over real gRPC; what is no JSON is refused when it is written."""

from typing import Any, Final

import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from store_service.model.limits import MIB
from tests.conftest import Stubs
from tests.store.builders import (
    TENANT,
    assert_invalid,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    history,
    lease,
    new_task,
    refusal_of,
)

BYTE_FOR_BYTE: Final = [
    b'{"b":1,"a":2,"a":3}',
    b' {"a" :\t1.0,\n"b":1 } \r\n',
    b'"\\u0000"',
    b'{"\\u0000": "\\u0000"}',
    b"123456789012345678901234567890.0e1",
    b"9" * 640,
    b"-" + b"9" * 640,
    b'"' + b"9" * 641 + b'"',
    b'"\\ud83d\\ude00 \xf0\x9f\x98\x80 \\/ /"',
    b"[" * 64 + b"]" * 64,
    b'{"a":' * 64 + b"1" + b"}" * 64,
    b'["' + b"[" * 1_000 + b'\\"[[[\\\\"]',
    b"0",
    b"-0.0",
    b"null",
    b'""',
    b"[]",
]
REFUSED: Final = [
    b"",
    b" ",
    b"{",
    b"[1,]",
    b"{'a':1}",
    b"NaN",
    b"[Infinity]",
    b"1 2",
    b"\xef\xbb\xbf1",
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\xc0\x80"',
    b'"\0"',
    b"\0",
    b'"\n"',
    b'"\\x41"',
    b'"\\ud800"',
    b"[" * 65 + b"]" * 65,
    b'{"a":' * 65 + b"1" + b"}" * 65,
    b'[{"a":[' * 22 + b"]}]" * 22,
    b"[" * 100_000,
    b"9" * 641,
    b"[" + b"9" * 641 + b"]",
    b"0." + b"1" * 641,
    b"1e999",
]


def big(size: int) -> bytes:
    """A JSON text of just so many bytes."""
    return b'"' + b"x" * (size - 2) + b'"'


async def test_payloads_come_back_byte_for_byte(store: Stubs) -> None:
    for data in BYTE_FOR_BYTE:
        await create(store, data=data)
        leased = await lease(store)
        assert leased.input.data == data
        await store.leases.AppendCheckpoint(checkpoint(leased.lease, data=data))
        steps = (await store.leases.LoadCheckpoints(leases_pb2.LoadCheckpointsRequest(lease=leased.lease))).checkpoints
        assert [step.payload.data for step in steps] == [data]
        await store.leases.CompleteTask(complete(leased.lease, data))
        read = await get(store, leased.lease.task_id)
        assert (read.input.data, read.result.data) == (data, data)
        assert read.result.media_type == "application/json"


async def test_what_is_no_json_is_refused_everywhere(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for data in REFUSED:
        await assert_invalid(store.tasks.CreateTask(new_task(data=data)), "input.data")
        await assert_invalid(store.leases.AppendCheckpoint(checkpoint(held, data=data)), "payload.data")
        await assert_invalid(store.leases.CompleteTask(complete(held, data)), "result.data")
        error = types_pb2.TaskError(message="m", data=types_pb2.Payload(data=data))
        await assert_invalid(store.leases.FailTask(leases_pb2.FailTaskRequest(lease=held, error=error)), "error.data.data")
        if data:  # they may be absent
            request = new_task()
            request.contract.client_capabilities = data
            await assert_invalid(store.tasks.CreateTask(request), "contract.client_capabilities")
            request = new_task()
            request.contract.output_schema = data
            await assert_invalid(store.tasks.CreateTask(request), "contract.output_schema")
    assert await history(store, held.task_id) == ["CREATED", "LEASED"]


async def test_bytes_of_another_media_type_are_not_looked_at(store: Stubs) -> None:
    data = bytes(range(256))
    request = new_task(data=data)
    request.input.media_type = "application/octet-stream"
    task = (await store.tasks.CreateTask(request)).task
    read = await get(store, task.task_id)
    assert (read.input.media_type, read.input.data) == ("application/octet-stream", data)
    held = (await lease(store)).lease
    error = types_pb2.TaskError(message="m", data=types_pb2.Payload(media_type="text/plain", data=b"1"))
    await assert_invalid(store.leases.FailTask(leases_pb2.FailTaskRequest(lease=held, error=error)), "error.data.media_type")


async def test_an_input_of_one_mebibyte_is_taken_and_one_byte_more_is_not(store: Stubs) -> None:
    await assert_invalid(store.tasks.CreateTask(new_task(data=big(MIB + 1))), "input.data")
    task = await create(store, data=big(MIB))
    assert (await lease(store)).input.data == big(MIB)
    assert (await get(store, task.task_id)).input.data == big(MIB)


@pytest.mark.row("G6")
async def test_checkpoints_and_results_of_four_mebibytes_are_taken_and_one_byte_more_is_not(store: Stubs) -> None:
    await create(store, data=big(MIB))
    held = (await lease(store)).lease
    await assert_invalid(store.leases.AppendCheckpoint(checkpoint(held, data=big(4 * MIB + 1))), "payload.data")
    await store.leases.AppendCheckpoint(checkpoint(held, data=big(4 * MIB)))
    await assert_invalid(store.leases.CompleteTask(complete(held, big(4 * MIB + 1))), "result.data")
    await store.leases.CompleteTask(complete(held, big(4 * MIB)))
    read = await get(store, held.task_id)
    assert (read.input.data, read.result.data) == (big(MIB), big(4 * MIB))
    request = tasks_pb2.GetCheckpointRequest(tenant_id=TENANT, task_id=held.task_id)
    assert (await store.tasks.GetCheckpoint(request)).checkpoint.payload.data == big(4 * MIB)


async def test_what_surrounds_a_task_is_bounded(store: Stubs) -> None:
    for field, most in (("client_capabilities", 64 * 1024), ("output_schema", 256 * 1024)):
        request = new_task()
        setattr(request.contract, field, big(most + 1))
        await assert_invalid(store.tasks.CreateTask(request), f"contract.{field}")
        setattr(request.contract, field, big(most))
        task = (await store.tasks.CreateTask(request)).task
        assert getattr((await get(store, task.task_id)).contract, field) == big(most)
    held = (await store.leases.LeaseTasks(claim(limit=1))).tasks[0].lease
    for size in (64 * 1024 + 1, 64 * 1024):
        error = types_pb2.TaskError(message="m", data=types_pb2.Payload(data=big(size)))
        call = store.leases.FailTask(leases_pb2.FailTaskRequest(lease=held, error=error))
        await (assert_invalid(call, "error.data.data") if size > 64 * 1024 else call)
    assert (await get(store, held.task_id)).error.data.data == big(64 * 1024)


async def test_inputs_that_do_not_fit_into_one_answer_are_read_one_by_one(store: Stubs) -> None:
    for _ in range(6):
        await create(store, data=big(MIB))
    tasks = (await store.leases.LeaseTasks(claim())).tasks
    assert [task.input_left_out for task in tasks] == [False] * 4 + [True] * 2
    for task in tasks:
        assert task.HasField("input") != task.input_left_out
        read = await store.leases.LoadInput(leases_pb2.LoadInputRequest(lease=task.lease))
        assert read.input.data == big(MIB)


async def test_a_claim_takes_no_more_contracts_than_an_answer_carries(store: Stubs) -> None:
    request = new_task()
    for _ in range(40):
        request.request_id += "x"
        request.contract.output_schema = big(256 * 1024)
        await store.tasks.CreateTask(request)
    seen: set[str] = set()
    while tasks := (await store.leases.LeaseTasks(claim(limit=100))).tasks:
        assert len(tasks) <= 16
        seen.update(task.lease.task_id for task in tasks)
        assert all(task.contract.output_schema == big(256 * 1024) for task in tasks)
    assert len(seen) == 40


async def test_a_task_keeps_so_many_checkpoints_and_bytes_of_them(store: Stubs, database: Any) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.AppendCheckpoint(checkpoint(held, data=b"1"))
    await database.execute("UPDATE tenure.task_state SET checkpoint_bytes = 64 * 1024 * 1024 - 2")
    assert (
        await refusal_of(store.leases.AppendCheckpoint(checkpoint(held, revision=1, data=b"123")))
    ).reason == "CHECKPOINT_LIMIT"
    await store.leases.AppendCheckpoint(checkpoint(held, revision=1, data=b"12"))
    assert (
        await refusal_of(store.leases.AppendCheckpoint(checkpoint(held, revision=2, data=b"1")))
    ).reason == "CHECKPOINT_LIMIT"
    await database.execute("UPDATE tenure.task_state SET checkpoint_bytes = 0, checkpoints = 9999")
    await store.leases.AppendCheckpoint(checkpoint(held, revision=9_999))
    assert (await refusal_of(store.leases.AppendCheckpoint(checkpoint(held, revision=10_000)))).reason == "CHECKPOINT_LIMIT"
    assert (await get(store, held.task_id)).checkpoints == 10_000


@pytest.mark.parametrize("text", ["a\0b", "\0"])
async def test_a_nul_in_a_text_is_refused_and_in_a_payload_kept(store: Stubs, text: str) -> None:
    held = (await create_and_lease(store)).lease
    await assert_invalid(store.leases.FailTask(fail(held, message=text)), "error.message")
    await store.leases.CompleteTask(complete(held, b'"a\\u0000b"'))
    assert (await get(store, held.task_id)).result.data == b'"a\\u0000b"'
