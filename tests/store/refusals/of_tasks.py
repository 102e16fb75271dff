"""What the methods of tasks refuse."""

from typing import Final

from google.protobuf.message import Message
from taskstore.v1 import tasks_pb2, tenants_pb2

from tests.store.builders import (
    TENANT,
    cancel,
    create,
    new_task,
    set_policy,
)
from tests.store.refusals.calls import (
    ANSWER,
    NO_ID,
    Scene,
    fork,
    signal,
)
from tests.store.refusals.case import Cases

OF_TASKS: Final = Cases()
case = OF_TASKS.case


@case("CreateTask", "REQUEST_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    await create(scene.store, request_id="once")
    return new_task(request_id="once", data=b"2")


@case("CreateTask", "OUTSTANDING_LIMIT")
async def _(scene: Scene) -> Message:
    await set_policy(scene.store, outstanding=1, leased=1)
    await create(scene.store)
    return new_task()


@case("CreateTask", "CREATE_RATE")
async def _(scene: Scene) -> Message:
    await _set_policy(scene, max_creates_per_second=1)
    await create(scene.store)
    return new_task()


@case("CreateTask", "INPUT_TOO_LARGE")
async def _(scene: Scene) -> Message:
    await _set_policy(scene, max_input_bytes=1)
    return new_task(data=b"10")


@case("GetTasks", "BATCH_FULL")
async def _(scene: Scene) -> Message:
    request = new_task()
    request.contract.output_schema = b'"' + b"x" * (256 * 1024 - 2) + b'"'
    task_id = (await scene.store.tasks.CreateTask(request)).task.task_id
    return tasks_pb2.GetTasksRequest(items=[tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=task_id)] * 17)


@case("WatchTasks", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.WatchTasksRequest(add=[tasks_pb2.WatchedTask(number=1, tenant_id=TENANT, task_id=NO_ID)])


@case("GetTask", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.GetTaskRequest(tenant_id=TENANT, task_id=NO_ID)


@case("FindTask", "TASK_NOT_FOUND")
async def _(scene: Scene) -> Message:
    await create(scene.store, reference="one")
    return tasks_pb2.FindTaskRequest(tenant_id=TENANT, reference="other")


@case("ExplainTask", "TASK_NOT_FOUND")
async def _(scene: Scene) -> Message:
    return tasks_pb2.ExplainTaskRequest(tenant_id=TENANT, task_id=NO_ID)


@case("CancelTask", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return cancel(NO_ID)


@case("AttachTask", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.AttachTaskRequest(tenant_id=TENANT, task_id=NO_ID)


@case("ListTaskHistory", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.ListTaskHistoryRequest(tenant_id=TENANT, task_id=NO_ID)


@case("ListCheckpoints", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.ListCheckpointsRequest(tenant_id=TENANT, task_id=NO_ID)


@case("GetCheckpoint", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.GetCheckpointRequest(tenant_id=TENANT, task_id=NO_ID)


@case("GetCheckpoint", "CHECKPOINT_NOT_FOUND")
async def _(scene: Scene) -> Message:
    return tasks_pb2.GetCheckpointRequest(tenant_id=TENANT, task_id=(await create(scene.store)).task_id)


@case("AnswerInputs", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.AnswerInputsRequest(tenant_id=TENANT, task_id=NO_ID, answers=[ANSWER])


@case("PublishSignal", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return signal(NO_ID)


@case("PublishSignal", "SIGNAL_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    task_id = (await create(scene.store)).task_id
    await scene.store.tasks.PublishSignal(signal(task_id, signal_id="once"))
    return signal(task_id, signal_id="once", data=b"2")


@case("PublishSignal", "SIGNAL_LIMIT")
async def _(scene: Scene) -> Message:
    task_id = (await create(scene.store)).task_id
    await scene.store.tasks.PublishSignal(signal(task_id))
    await scene.database.execute(
        "INSERT INTO tenure.signal SELECT (jsonb_populate_record(s, jsonb_build_object('signal_id', 'copy-' || n))).* "
        "FROM tenure.signal s, generate_series(2, 1000) n"
    )
    return signal(task_id, signal_id="one more")


@case("GetSignal", "SIGNAL_NOT_FOUND")
async def _(_: Scene) -> Message:
    return tasks_pb2.GetSignalRequest(tenant_id=TENANT, signal_id="none")


@case("ForkTask", "TASK_NOT_FOUND")
async def _(_: Scene) -> Message:
    return fork(NO_ID)


@case("ForkTask", "CHECKPOINT_NOT_FOUND")
async def _(scene: Scene) -> Message:
    return fork((await create(scene.store)).task_id, checkpoints=1)


@case("ForkTask", "REQUEST_ID_CONFLICT")
async def _(scene: Scene) -> Message:
    await create(scene.store, request_id="once")
    return fork((await create(scene.store)).task_id, request_id="once")


@case("ForkTask", "CREATE_RATE")
async def _(scene: Scene) -> Message:
    task = await create(scene.store)
    await _set_policy(scene, max_creates_per_second=1)
    await create(scene.store)
    return fork(task.task_id)


@case("ForkTask", "OUTSTANDING_LIMIT")
async def _(scene: Scene) -> Message:
    await set_policy(scene.store, outstanding=1, leased=1)
    return fork((await create(scene.store)).task_id)


async def _set_policy(scene: Scene, **limits: int) -> None:
    policy = tenants_pb2.TenantPolicy(max_outstanding=9, max_leased=9, retention_ms=86_400_000, **limits)
    await scene.store.tenants.SetTenantPolicy(tenants_pb2.SetTenantPolicyRequest(tenant_id=TENANT, policy=policy))
