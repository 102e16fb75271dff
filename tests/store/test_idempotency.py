"""What may be repeated after an unknown outcome, and how a repetition is answered. Source: contract, section 21."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import asyncpg
import grpc
import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from store_service.db.queries import Queries
from tests.conftest import Clock, Stubs
from tests.store.builders import (
    LOCK_TENANT,
    MOST_SECONDS,
    TENANT,
    assert_invalid,
    assert_lease_lost,
    blocked,
    bring_along,
    cancel,
    checkpoint,
    claim,
    complete,
    create,
    create_and_lease,
    fail,
    get,
    heartbeat,
    history,
    holding,
    lease,
    new_task,
    refusal_of,
    release,
    retry_policy,
    set_policy,
)


async def test_the_same_creation_again_returns_the_first_task(store: Stubs) -> None:
    request = new_task()
    first = await store.tasks.CreateTask(request)
    again = await store.tasks.CreateTask(request)
    assert not first.replayed
    assert again.replayed
    again.task.read_at.CopyFrom(first.task.read_at)
    assert again.task == first.task
    assert (await store.leases.LeaseTasks(claim())).tasks[0].lease.task_id == first.task.task_id
    later = await store.tasks.CreateTask(request)
    assert later.replayed
    assert later.task.state == types_pb2.TASK_STATE_LEASED


CHANGES: Final[list[tuple[str, Callable[[tasks_pb2.CreateTaskRequest], Any]]]] = [
    ("tool", lambda r: setattr(r.contract, "tool", "other")),
    ("workflow", lambda r: setattr(r.contract, "workflow", "other")),
    ("version", lambda r: setattr(r.contract, "workflow_version", 2)),
    ("issuer", lambda r: setattr(r.contract.owner, "issuer", "other")),
    ("subject", lambda r: setattr(r.contract.owner, "subject", "bob")),
    ("capabilities", lambda r: setattr(r.contract, "client_capabilities", b"{}")),
    ("schema", lambda r: setattr(r.contract, "output_schema", b"{}")),
    ("ttl", lambda r: setattr(r.contract, "ttl_ms", 5)),
    ("poll", lambda r: setattr(r.contract, "poll_interval_ms", 5)),
    ("deadline", lambda r: setattr(r.contract, "execution_deadline_ms", 5_000)),
    ("priority", lambda r: setattr(r, "priority", 1)),
    ("media type", lambda r: setattr(r.input, "media_type", "text/plain")),
    ("input", lambda r: setattr(r.input, "data", b'{"a":1}')),
]


@pytest.mark.row("T16")
async def test_a_creation_with_other_content_conflicts_and_tells_nothing_of_the_first(store: Stubs) -> None:
    request = new_task()
    await store.tasks.CreateTask(request)
    for name, change in CHANGES:
        other = tasks_pb2.CreateTaskRequest()
        other.CopyFrom(request)
        change(other)
        refused = await refusal_of(store.tasks.CreateTask(other))
        assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_CONFLICT"), name
    assert len((await store.tasks.ListTasks(tasks_pb2.ListTasksRequest(tenant_id=TENANT))).tasks) == 1


async def test_the_trace_of_a_repetition_may_differ(store: Stubs) -> None:
    request = new_task()
    first = await store.tasks.CreateTask(request)
    request.contract.trace_parent, request.contract.trace_state, request.contract.baggage = "00-ab-cd-01", "a=1", "b=2"
    again = await store.tasks.CreateTask(request)
    assert (again.replayed, again.task.task_id) == (True, first.task.task_id)


async def test_a_repetition_under_another_reference_finds_the_first_task(store: Stubs) -> None:
    first = await store.tasks.CreateTask(new_task(request_id="once", reference="a"))
    again = await store.tasks.CreateTask(new_task(request_id="once", reference="b"))
    assert (again.replayed, again.task.task_id) == (True, first.task.task_id)


async def test_a_request_id_belongs_to_its_tenant(store: Stubs) -> None:
    one = await create(store, request_id="same", tenant_id="acme")
    other = await create(store, request_id="same", tenant_id="globex")
    assert one.task_id != other.task_id


async def test_fifty_creations_at_once_with_one_request_id_make_one_task(store: Stubs, second_store: Stubs) -> None:
    request = new_task()
    calls = [each.tasks.CreateTask(request) for _ in range(25) for each in (store, second_store)]
    answers = await asyncio.gather(*calls)
    assert len({answer.task.task_id for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1
    assert len((await store.leases.LeaseTasks(claim())).tasks) == 1


async def test_fifty_creations_at_once_with_one_request_id_and_two_contents_make_one_task(
    store: Stubs, second_store: Stubs
) -> None:
    requests = [new_task(request_id="same", data=data) for data in (b"1", b"2")]
    calls = [each.tasks.CreateTask(request) for _ in range(13) for each in (store, second_store) for request in requests]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    made = [answer for answer in answers if isinstance(answer, tasks_pb2.CreateTaskResponse)]
    refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert (len(made), len(refused)) == (26, 26)
    assert len({answer.task.task_id for answer in made}) == 1
    assert {error.code() for error in refused} == {grpc.StatusCode.ALREADY_EXISTS}


Finish = Callable[[Stubs, types_pb2.Lease], Any]
FINISHES: Final[dict[str, Finish]] = {
    "complete": lambda store, held: store.leases.CompleteTask(complete(held)),
    "fail": lambda store, held: store.leases.FailTask(fail(held)),
    "retry": lambda store, held: store.leases.FailTask(fail(held, retry=retry_policy(initial_ms=50_000))),
    "release": lambda store, held: store.leases.ReleaseTask(release(held, delay_ms=9)),
    "confirm": lambda store, held: store.leases.ConfirmCancel(leases_pb2.ConfirmCancelRequest(lease=held)),
    "complete otherwise": lambda store, held: store.leases.CompleteTask(complete(held, b"2")),
    "complete as another type": lambda store, held: store.leases.CompleteTask(
        leases_pb2.CompleteTaskRequest(lease=held, result=types_pb2.Payload(media_type="text/plain", data=b"1"))
    ),
    "fail otherwise": lambda store, held: store.leases.FailTask(fail(held, message="another reason")),
    "retry otherwise": lambda store, held: store.leases.FailTask(fail(held, retry=retry_policy(initial_ms=51_000))),
    "release otherwise": lambda store, held: store.leases.ReleaseTask(release(held, delay_ms=10)),
}


async def test_the_same_finish_is_answered_again_and_every_other_one_is_refused(store: Stubs) -> None:
    for first in ("complete", "fail", "retry", "release", "confirm"):
        workflow = first
        await create(store, workflow=workflow)
        held = (await lease(store, workflow=workflow)).lease
        answer = await FINISHES[first](store, held)
        before = await get(store, held.task_id)
        for name, finish in FINISHES.items():
            if name == first:
                assert await finish(store, held) == answer
            else:
                await assert_lease_lost(finish(store, held))
        after = await get(store, held.task_id)
        before.read_at.CopyFrom(after.read_at)
        assert after == before


async def test_a_finish_of_another_worker_with_the_same_token_is_refused(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.CompleteTask(complete(held))
    held.worker_id = "w2"
    await assert_lease_lost(store.leases.CompleteTask(complete(held)))


async def test_after_the_next_lease_a_repeated_finish_is_refused(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.ReleaseTask(release(held))
    await store.leases.ReleaseTask(release(held))
    await lease(store, worker_id="w2")
    await assert_lease_lost(store.leases.ReleaseTask(release(held)))


async def test_a_finish_is_answered_again_long_after_its_lease_would_have_expired(store: Stubs, clock: Clock) -> None:
    held = (await create_and_lease(store)).lease
    await store.leases.CompleteTask(complete(held))
    await clock.advance(seconds=3_600)
    await store.leases.CompleteTask(complete(held))
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "COMPLETED"]


async def test_fifty_equal_completions_at_once_complete_once(store: Stubs, second_store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    calls = [each.leases.CompleteTask(complete(held)) for _ in range(25) for each in (store, second_store)]
    await asyncio.gather(*calls)
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "COMPLETED"]


async def test_a_repeated_claim_returns_what_it_took(store: Stubs) -> None:
    for _ in range(3):
        await create(store)
    request = claim(limit=2)
    first = await store.leases.LeaseTasks(request)
    assert len(first.tasks) == 2
    again = await store.leases.LeaseTasks(request)
    assert [task.lease for task in again.tasks] == [task.lease for task in first.tasks]
    await store.leases.CompleteTask(complete(first.tasks[0].lease))
    rest = await store.leases.LeaseTasks(request)
    assert [task.lease for task in rest.tasks] == [first.tasks[1].lease]
    other = await store.leases.LeaseTasks(claim(limit=2))
    assert len(other.tasks) == 1
    assert other.tasks[0].attempts == 1


async def test_a_repeated_claim_grants_full_leases_again(store: Stubs, clock: Clock, database: asyncpg.Connection) -> None:
    await create(store)
    request = claim(lease_ms=30_000)
    first = (await store.leases.LeaseTasks(request)).tasks[0]
    await clock.advance(seconds=25)
    again = (await store.leases.LeaseTasks(request)).tasks[0]
    assert again.lease == first.lease
    assert again.expires_at.ToDatetime() >= first.expires_at.ToDatetime() + timedelta(seconds=25)
    await clock.advance(seconds=25)
    await store.leases.HeartbeatTask(heartbeat(first.lease))
    await clock.advance(seconds=31)
    assert not (await store.leases.LeaseTasks(request)).tasks
    await bring_along(store, database)
    assert (await get(store, first.lease.task_id)).state == types_pb2.TASK_STATE_QUEUED


async def test_a_claim_repeated_while_the_first_is_under_way_takes_nothing_more(
    store: Stubs, second_store: Stubs, dsn: str, database: asyncpg.Connection
) -> None:
    for _ in range(2):
        await create(store)
    request = claim(limit=1)
    async with holding(dsn, LOCK_TENANT, TENANT):
        calls = [asyncio.ensure_future(each.leases.LeaseTasks(request)) for each in (store, second_store)]
        await blocked(database, count=2)
    one, other = await asyncio.gather(*calls)
    assert [task.lease for task in one.tasks] == [task.lease for task in other.tasks]
    assert len(one.tasks) == 1
    assert (await lease(store, worker_id="w2")).attempts == 1


async def test_a_request_id_of_a_claim_belongs_to_its_worker(store: Stubs) -> None:
    for _ in range(2):
        await create(store)
    one = await lease(store, request_id="same", limit=1)
    other = await lease(store, request_id="same", limit=1, worker_id="w2")
    assert one.lease.task_id != other.lease.task_id


async def test_a_checkpoint_is_accepted_once_per_revision(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for wrong in (1, 2, 2**31 - 1):
        refused = await refusal_of(store.leases.AppendCheckpoint(checkpoint(held, revision=wrong)))
        assert (refused.code, refused.reason) == (grpc.StatusCode.ABORTED, "REVISION_CONFLICT")
    await store.leases.AppendCheckpoint(checkpoint(held, revision=0, data=b"0"))
    for wrong in (0, 2):
        assert (await refusal_of(store.leases.AppendCheckpoint(checkpoint(held, revision=wrong)))).reason == "REVISION_CONFLICT"
    await store.leases.AppendCheckpoint(checkpoint(held, revision=1, data=b"1"))
    read = await store.leases.LoadCheckpoints(leases_pb2.LoadCheckpointsRequest(lease=held))
    assert [(one.revision, one.payload.data, one.token) for one in read.checkpoints] == [(0, b"0", 1), (1, b"1", 1)]


async def test_of_fifty_checkpoints_at_once_with_one_revision_one_is_accepted(store: Stubs, second_store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    calls = [
        each.leases.AppendCheckpoint(checkpoint(held, data=str(number).encode()))
        for number in range(25)
        for each in (store, second_store)
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(refused) == 49
    assert {error.code() for error in refused} == {grpc.StatusCode.ABORTED}
    assert (await get(store, held.task_id)).checkpoints == 1


async def test_what_a_claim_has_in_hand_is_not_forgotten(
    dsn: str, store: Stubs, database: asyncpg.Connection, clock: Clock
) -> None:
    await create_and_lease(store)
    await clock.advance(seconds=7_200)
    async with holding(dsn, "UPDATE tenure.worker_claim SET claimed_at = tenure.task_now()"):
        async with asyncio.timeout(MOST_SECONDS):
            await database.execute(Queries("chores.sql")["forget_claims"], 3_600_000, 1_000)
    assert await database.fetchval("SELECT count(*) FROM tenure.worker_claim") == 1


async def test_a_cancel_again_changes_nothing(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for _ in range(3):
        assert (await store.tasks.CancelTask(cancel(held.task_id))).outcome == tasks_pb2.CANCEL_OUTCOME_REQUESTED
    assert await history(store, held.task_id) == ["CREATED", "LEASED", "CANCEL_REQUESTED"]
    outcome = (await store.tasks.CancelTask(cancel(held.task_id, force=True))).outcome
    assert outcome == tasks_pb2.CANCEL_OUTCOME_CANCELLED
    for force in (False, True):
        outcome = (await store.tasks.CancelTask(cancel(held.task_id, force=force))).outcome
        assert outcome == tasks_pb2.CANCEL_OUTCOME_ALREADY_TERMINAL
    assert len(await history(store, held.task_id)) == 4


@pytest.mark.parametrize("times", [1, 3])
async def test_the_last_policy_wins_and_may_be_set_again(store: Stubs, times: int) -> None:
    await set_policy(store, outstanding=5, leased=5)
    for _ in range(times):
        tenant = await set_policy(store, outstanding=7, leased=3)
    assert (tenant.policy.max_outstanding, tenant.policy.max_leased) == (7, 3)


async def test_a_digest_of_the_callers_own_decides_what_is_the_same(store: Stubs) -> None:
    first, changed = new_task(request_id="r1"), new_task(request_id="r1", ttl_ms=5_000)
    first.content_digest = changed.content_digest = b"d" * 32
    created = await store.tasks.CreateTask(first)
    again = await store.tasks.CreateTask(changed)
    assert (again.replayed, again.task.task_id) == (True, created.task.task_id)
    changed.content_digest = b"e" * 32
    assert (await refusal_of(store.tasks.CreateTask(changed))).reason == "REQUEST_ID_CONFLICT"
    changed.content_digest = b"short"
    await assert_invalid(store.tasks.CreateTask(changed), "content_digest")
