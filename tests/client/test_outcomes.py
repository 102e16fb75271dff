"""How a task ends, by what its code returned or raised."""

import asyncio
import json
import math
from typing import Any

import pytest

from store_service.client import Cancelled, Context, ProtocolError, RetryPolicy, SyncContext, ToolError
from tests.client.fake_store import FakeStore, FakeTask, new_worker, outcomes


def result_of(task: FakeTask) -> dict[str, Any]:
    assert task.result is not None
    found: dict[str, Any] = json.loads(task.result)
    return found


async def run(
    fake: FakeStore, function: Any, *, retry: RetryPolicy | None = None, **task: Any
) -> tuple[FakeTask, dict[str, float]]:
    worker = new_worker(fake)
    worker.workflow("report", retry=retry)(function)
    added = fake.add(**task)
    async with worker:
        await fake.ended(added)
    return added, outcomes(worker)


async def test_a_string_becomes_text_content(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        return f"Hello, {args['name']}!"

    task, counted = await run(fake, report, data=b'{"name": "Ann"}')
    assert result_of(task) == {"content": [{"type": "text", "text": "Hello, Ann!"}]}
    assert counted == {"completed": 1}


async def test_a_sync_function_runs_in_a_thread_with_blocking_steps(fake: FakeStore) -> None:
    async def later() -> str:
        return "awaited"

    def report(ctx: SyncContext, args: dict[str, Any]) -> dict[str, Any]:
        ctx.progress(1, 2, "half\0way")
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return {"a": ctx.step("one", lambda: 41) + 1, "b": ctx.step("two", later), "waited": ctx.wait_cancelled(0)}

    task, _ = await run(fake, report)
    assert result_of(task)["structuredContent"] == {"a": 42, "b": "awaited", "waited": False}
    assert task.steps == ["one", "two"]
    assert (task.progress[0].value, task.progress[0].total, task.progress[0].message) == (1, 2, "half\ufffdway")


@pytest.mark.must("T-06", "T-37")
async def test_a_tool_error_completes_with_is_error(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        raise ToolError("no such city")

    task, counted = await run(fake, report, output_schema=b'{"type": "object", "required": ["x"]}')
    assert result_of(task) == {"content": [{"type": "text", "text": "no such city"}], "isError": True}
    assert counted == {"tool_error": 1}


@pytest.mark.must("T-36")
async def test_a_protocol_error_fails_the_task_with_its_code_and_data(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        raise ProtocolError(-32602, "bad city", {"city": "\0"})

    task, counted = await run(fake, report)
    assert task.error is not None
    assert (task.error.code, task.error.message) == (-32602, "bad city")
    assert json.loads(task.error.data.data) == {"city": "\0"}
    assert (counted, task.attempts) == ({"failed": 1}, 1)


@pytest.mark.must("L-17", "T-06")
async def test_an_exception_is_tried_again_then_ends_as_a_sanitized_tool_error(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        raise KeyError("secret: hunter2")

    task, counted = await run(fake, report, retry=RetryPolicy(max_attempts=3, initial_backoff_seconds=2))
    assert counted == {"retried": 2, "tool_error": 1}
    assert task.retry is not None
    assert (task.retry.max_attempts, task.retry.initial_backoff_ms, task.retry.max_backoff_ms) == (3, 2000, 60_000)
    assert result_of(task)["isError"] is True
    assert b"hunter2" not in (task.result or b"")
    assert all("hunter2" not in request.error.message for request in fake.of("FailTask"))


async def test_code_that_exits_the_process_ends_only_its_task(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        raise SystemExit(3)

    def blocking(ctx: SyncContext, args: dict[str, Any]) -> None:
        raise SystemExit(3)

    worker = new_worker(fake)
    worker.workflow("report", retry=RetryPolicy(max_attempts=1))(report)
    worker.workflow("blocking", retry=RetryPolicy(max_attempts=1))(blocking)
    tasks = fake.add(), fake.add("blocking")
    async with worker:
        await fake.ended(*tasks)
    assert outcomes(worker) == {"tool_error": 2}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "is not JSON"),
        ({"x": [1, -math.inf]}, "is not JSON"),
        (object(), "is not JSON"),
        ("\ud800", "not valid Unicode"),
        (10**640, "more than 640 digits"),
        ("x" * 4 * 2**20, "can be kept"),
    ],
)
async def test_a_result_that_cannot_be_kept_fails_the_task_in_one_attempt(fake: FakeStore, value: Any, reason: str) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        return value

    task, counted = await run(fake, report)
    assert task.error is not None
    assert (task.error.code, counted) == (-32603, {"failed": 1})
    assert reason in task.error.message


async def test_a_result_that_the_store_refuses_fails_the_task(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> str:
        await fake.asked_again()
        return "fine"

    fake.refuse("CompleteTask", "INVALID_INPUT")
    task, counted = await run(fake, report)
    assert task.error is not None
    assert "the store refused the result" in task.error.message
    assert counted == {"failed": 1}


@pytest.mark.must("L-12")
async def test_structured_content_that_breaks_the_output_schema_fails_the_task_and_names_the_path(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> Any:
        return {"rows": [{"n": 1}, {"n": "secret"}]}

    schema = b'{"properties": {"rows": {"items": {"properties": {"n": {"type": "integer"}}}}}}'
    task, counted = await run(fake, report, output_schema=schema)
    assert task.error is not None
    assert "/rows/1/n" in task.error.message
    assert "secret" not in task.error.message
    assert counted == {"failed": 1}


async def test_the_code_sees_its_task(fake: FakeStore) -> None:
    seen: dict[str, Any] = {}

    async def report(ctx: Context, args: dict[str, Any]) -> None:
        seen.update(
            task_id=ctx.task_id,
            tenant_id=ctx.tenant_id,
            token=ctx.fencing_token,
            attempt=ctx.attempt,
            keys={ctx.idempotency_key("a"), ctx.idempotency_key("a"), ctx.idempotency_key("b")},
            can=[ctx.client.can("sampling"), ctx.client.can("elicitation", "form"), ctx.client.can("elicitation", "url")],
            args=args,
        )

    task, _ = await run(fake, report, data=b'{"nul": "\\u0000"}', input_left_out=True, capabilities=b'{"elicitation": {}}')
    assert seen.pop("task_id") == task.task_id
    assert len(seen.pop("keys")) == 2
    expected = {"tenant_id": "acme", "token": 1, "attempt": 1, "can": [False, True, False], "args": {"nul": "\0"}}
    assert seen == expected
    assert result_of(task) == {"content": []}


async def test_a_task_whose_end_is_wished_for_already_is_not_begun(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        raise AssertionError("it was begun")

    task, counted = await run(fake, report, cancel_requested=True)
    assert (task.state, counted) == ("CANCELLED", {"cancelled": 1})


async def test_cancelled_that_nobody_wished_for_is_a_failure(fake: FakeStore) -> None:
    async def report(ctx: Context, args: dict[str, Any]) -> None:
        raise Cancelled

    task, counted = await run(fake, report, retry=RetryPolicy(max_attempts=1))
    assert (task.state, counted) == ("COMPLETED", {"tool_error": 1})
