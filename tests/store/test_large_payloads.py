"""What is kept is brought as it was kept: it is not read again, and large ones are not copied again and again."""

import asyncio
import sys
import tracemalloc
from typing import Final

import asyncpg
from taskstore.v1 import types_pb2

from store_service.model.limits import MIB
from tests.conftest import Stubs
from tests.store.builders import complete, create_and_lease, get

LARGE: Final = 4 * MIB
CHANGED: Final = """
ALTER TABLE tenure.outcome DISABLE TRIGGER USER;
UPDATE tenure.outcome SET data = '\\x7b2c2cff';
ALTER TABLE tenure.outcome ENABLE TRIGGER USER
"""
ASK: Final = """
import sys, grpc
from taskstore.v1 import tasks_pb2, tasks_pb2_grpc, types_pb2
address, task_id = sys.argv[1:]
with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 8 << 20)]) as channel:
    wanted = tasks_pb2.GetTaskRequest(tenant_id="acme", task_id=task_id, view=types_pb2.TASK_VIEW_OUTCOME)
    print(len(tasks_pb2_grpc.TaskServiceStub(channel).GetTask(wanted).task.result.data))
"""


async def completed(store: Stubs, data: bytes) -> str:
    """A task with this result."""
    held = (await create_and_lease(store)).lease
    await store.leases.CompleteTask(complete(held, data))
    return held.task_id


async def test_what_was_kept_is_never_read_again(store: Stubs, database: asyncpg.Connection) -> None:
    task_id = await completed(store, b'{"a":1}')
    await database.execute(CHANGED)
    assert (await get(store, task_id, view=types_pb2.TASK_VIEW_OUTCOME)).result.data == b"{,,\xff"


async def test_a_large_result_is_copied_a_few_times_at_most(store: Stubs) -> None:
    task_id = await completed(store, b'"' + b"x" * (LARGE - 2) + b'"')
    for _ in range(2):  # the first one makes what stays
        tracemalloc.start()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", ASK, store.address, task_id, stdout=asyncio.subprocess.PIPE
            )
            told, _ = await process.communicate()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert int(told) == LARGE
    assert peak < 2.6 * LARGE
