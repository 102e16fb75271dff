"""A task as it is shown, a refusal as it is answered. Contract, sections 5 and 10.16; case 27."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from taskstore.v1 import types_pb2

from mcp_bridge.translate import (
    detailed_task_members,
    failure_from,
    failure_of,
    is_expired,
    poll_interval_ms,
    task_members,
    tool_result,
    ttl_ms,
)
from store_service.client import StoreError

NOW = 1_795_953_600_000
HOUR = 3_600_000


def task_at(age_ms: int = 0, quiet_ms: int = 0, **fields: Any) -> types_pb2.Task:
    task = types_pb2.Task(
        task_id="t", state=types_pb2.TASK_STATE_LEASED, contract=types_pb2.TaskContract(ttl_ms=2 * HOUR, poll_interval_ms=2000)
    )
    task.created_at.FromMilliseconds(NOW - age_ms)
    task.changed_at.FromMilliseconds(NOW - quiet_ms)
    task.read_at.FromMilliseconds(NOW)
    for name, value in fields.items():
        setattr(task, name, value)
    return task


def shown(*members: bytes | memoryview) -> dict[str, Any]:
    value = json.loads(b"".join((b"{", *members, b"}")))
    assert isinstance(value, dict)
    return value


def test_a_fresh_task_is_shown_in_milliseconds_as_its_route_has_them() -> None:
    assert shown(task_members(task_at(), (), 2_000)) == {
        "taskId": "t",
        "status": "working",
        "createdAt": "2026-11-29T12:00:00.000Z",
        "lastUpdatedAt": "2026-11-29T12:00:00.000Z",
        "ttlMs": 7_200_000,
        "pollIntervalMs": 2_000,
    }


@pytest.mark.row("T11")
@given(st.integers(0, 10**12))
def test_a_live_task_never_outlives_its_handle(age_ms: int) -> None:
    assert NOW - age_ms + ttl_ms(task_at(age_ms)) >= NOW + 2 * HOUR


def test_after_the_end_the_handle_lives_as_long_as_the_store_says() -> None:
    task = task_at(HOUR)
    task.handle_expires_at.FromMilliseconds(NOW + HOUR)
    assert ttl_ms(task) == 2 * HOUR
    assert not is_expired(task)


@pytest.mark.row("T11")
def test_a_handle_ends_at_its_very_instant() -> None:
    task = task_at(HOUR)
    task.handle_expires_at.CopyFrom(task.read_at)
    assert is_expired(task)
    task.handle_expires_at.nanos += 1000
    assert not is_expired(task)


@given(st.integers(0, 10**9), st.integers(1, HOUR))
def test_polls_are_asked_for_less_often_the_longer_nothing_changes(quiet_ms: int, minimum: int) -> None:
    task, later = task_at(10**9, quiet_ms), task_at(10**9, quiet_ms + 60_000)
    task.contract.poll_interval_ms = later.contract.poll_interval_ms = minimum
    assert minimum <= poll_interval_ms(task, 30_000) <= poll_interval_ms(later, 30_000) <= max(minimum, 30_000)


def test_a_worker_that_reports_progress_is_looked_at_often_again_and_its_message_shown() -> None:
    task = task_at(HOUR, quiet_ms=0)
    task.progress.sequence, task.progress.message = 3, "halfway"
    members = shown(task_members(task, (), poll_interval_ms(task, 30_000)))
    assert members["pollIntervalMs"] == 2_000
    assert members["statusMessage"] == "halfway"


@pytest.mark.row("T7")
@pytest.mark.must("T-10", "T-14")
@pytest.mark.parametrize(
    ("state", "status"),
    [
        (types_pb2.TASK_STATE_QUEUED, "working"),
        (types_pb2.TASK_STATE_LEASED, "working"),
        (types_pb2.TASK_STATE_WAITING, "working"),
        (types_pb2.TASK_STATE_COMPLETED, "completed"),
        (types_pb2.TASK_STATE_FAILED, "failed"),
        (types_pb2.TASK_STATE_CANCELLED, "cancelled"),
    ],
)
def test_every_state_has_its_status(state: types_pb2.TaskState.ValueType, status: str) -> None:
    assert shown(task_members(task_at(state=state), (), 30_000))["status"] == status


@pytest.mark.must("T-38")
def test_a_result_is_shown_byte_for_byte_and_a_created_task_never_has_one() -> None:
    task = task_at(state=types_pb2.TASK_STATE_COMPLETED)
    task.result.data = b'{"content":[],"big":123456789012345678901234567890,"nul":"\\u0000"}'
    assert task.result.data[1:] in b"".join(detailed_task_members(task, (), 30_000))
    assert "result" not in shown(task_members(task, (), 30_000))


@pytest.mark.row("T7")
@pytest.mark.must("T-35", "T-36")
def test_a_failed_task_has_an_error_and_a_message_but_no_result() -> None:
    task = task_at(state=types_pb2.TASK_STATE_FAILED)
    task.error.code, task.error.message = -32603, "out of paper"
    task.error.data.data = b'{"tray":2.0}'
    members = shown(*detailed_task_members(task, (), 30_000))
    assert members["error"] == {"code": -32603, "message": "out of paper", "data": {"tray": 2.0}}
    assert members["statusMessage"] == "out of paper"
    assert "result" not in members


def test_a_result_that_is_not_json_is_not_laid_into_the_answer() -> None:
    task = task_at(state=types_pb2.TASK_STATE_COMPLETED)
    task.result.data, task.result.media_type = b'"}', "text/plain"
    assert json.loads(tool_result(task))["isError"] is True
    shown(*detailed_task_members(task, (), 30_000))


@pytest.mark.parametrize(("code", "status"), [(-32603, 200), (-32602, 200), (7, 200), (-32601, 200), (-32021, 400)])
def test_what_a_task_came_to_is_no_fault_of_the_request(code: int, status: int) -> None:
    task = task_at(state=types_pb2.TASK_STATE_FAILED)
    task.error.code, task.error.message = code, "m"
    assert failure_of(task).status == status


@pytest.mark.parametrize(
    ("reason", "retry_after_ms", "code", "status", "retry_after"),
    [
        ("TASK_NOT_FOUND", None, -32602, 400, None),
        ("REQUEST_ID_CONFLICT", None, 40900, 409, None),
        ("OUTSTANDING_LIMIT", 1000, 42900, 429, "1"),
        ("CREATE_RATE", 1000, 42900, 429, "1"),
        ("INPUT_TOO_LARGE", None, -32602, 400, None),
        ("STORAGE_UNAVAILABLE", 2500, 50300, 503, "3"),
        ("OUTCOME_UNKNOWN", 100, 50300, 503, "1"),
        ("DRAINING", None, 50300, 503, "1"),
        ("OVERLOADED", 200, 50300, 503, "1"),
        ("", None, 50300, 503, "1"),
    ],
)
def test_each_refusal_of_the_store_has_its_answer(
    reason: str, retry_after_ms: int | None, code: int, status: int, retry_after: str | None
) -> None:
    failure = failure_from(StoreError("SELECT secret FROM task", reason=reason, retry_after_ms=retry_after_ms))
    assert failure is not None
    assert (failure.code, failure.status, failure.headers.get("Retry-After")) == (code, status, retry_after)
    assert b"secret" not in failure.body(1)


@pytest.mark.parametrize("reason", ["INVALID_INPUT", "LEASE_LOST", "something new"])
def test_refusals_that_no_caller_can_cause_are_faults_of_ours(reason: str) -> None:
    assert failure_from(StoreError("m", reason=reason)) is None
