"""A fork begins with the first checkpoints of another task."""

import pytest
from taskstore.v1 import leases_pb2, tasks_pb2, types_pb2

from tests.conftest import Stubs
from tests.store.builders import TENANT, complete, create, create_and_lease, get, lease, refusal_of


async def test_a_fork_starts_with_the_first_checkpoints_and_leaves_its_source_alone(store: Stubs) -> None:
    held = (await create_and_lease(store)).lease
    for revision, step in enumerate(("a", "b", "c")):
        payload = types_pb2.Payload(data=str(revision).encode())
        await store.leases.AppendCheckpoint(
            leases_pb2.AppendCheckpointRequest(lease=held, revision=revision, step=step, payload=payload)
        )
    await store.leases.CompleteTask(complete(held))
    source = await get(store, held.task_id)
    request = tasks_pb2.ForkTaskRequest(tenant_id=TENANT, request_id="f1", source_task_id=held.task_id, checkpoints=2)
    first, again = await store.tasks.ForkTask(request), await store.tasks.ForkTask(request)
    assert (first.replayed, again.replayed) == (False, True)
    assert first.task.task_id == again.task.task_id != held.task_id
    assert (first.task.forked_from_task_id, first.task.forked_from_checkpoints) == (held.task_id, 2)
    taken = await lease(store)
    assert (taken.lease.task_id, taken.checkpoints, taken.lease.token) == (first.task.task_id, 2, 1)
    loaded = await store.leases.LoadCheckpoints(leases_pb2.LoadCheckpointsRequest(lease=taken.lease))
    assert [(one.step, one.payload.data) for one in loaded.checkpoints] == [("a", b"0"), ("b", b"1")]
    after = await get(store, held.task_id)
    source.read_at.CopyFrom(after.read_at)
    assert after == source


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source_task_id": "00000000-0000-4000-8000-000000000000"}, "TASK_NOT_FOUND"),
        ({"checkpoints": 1}, "CHECKPOINT_NOT_FOUND"),
        ({"owner": types_pb2.Owner(issuer="test", subject="bob")}, "TASK_NOT_FOUND"),
    ],
)
async def test_a_fork_of_what_is_not_there_is_refused(store: Stubs, change: dict[str, object], reason: str) -> None:
    task = await create(store)
    fields = {"tenant_id": TENANT, "request_id": "f1", "source_task_id": task.task_id, **change}
    assert (await refusal_of(store.tasks.ForkTask(tasks_pb2.ForkTaskRequest(**fields)))).reason == reason  # type: ignore[arg-type]
