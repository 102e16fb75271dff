"""What workers hand over is laid into answers: it is not read again, and large ones are not copied again and again."""

import asyncio
import json
import sys
import tracemalloc
from typing import Final

from mcp_bridge.app import Bridge
from tests.bridge.client import TASKS, Client, headers_for, meta
from tests.bridge.fake_store import FakeTaskStore

LARGE: Final = 4 * 1024 * 1024
ASK: Final = """
import http.client, json, sys
port, headers, body = json.loads(sys.stdin.read())
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
connection.request("POST", "/mcp", body.encode(), headers)
print(len(connection.getresponse().read()))
"""


async def test_what_a_worker_handed_over_is_laid_in_and_never_read(client: Client, fake: FakeTaskStore) -> None:
    task_id = (await client.call("task", tasks=True)).result["taskId"]
    unreadable = b'{"content":[],"structuredContent":{"n":1.0,,,"a":tru \xff'
    await fake.complete(task_id, unreadable)
    assert unreadable[1:] in (await client.task("get", task_id)).body


async def test_a_large_result_is_copied_a_few_times_at_most(bridge: Bridge, client: Client, fake: FakeTaskStore) -> None:
    task_id = (await client.call("task", tasks=True)).result["taskId"]
    await fake.complete(task_id, b'{"content":[],"structuredContent":"' + b"x" * LARGE + b'"}')
    params = {"taskId": task_id, "_meta": meta(TASKS)}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params})
    asked = json.dumps([bridge.port, headers_for("tasks/get", task_id), body])
    peaks = []
    for _ in range(4):  # the first one makes what stays; what a caller does not read at once is kept besides
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASK, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        tracemalloc.start()
        try:
            told, _ = await process.communicate(asked.encode())
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert int(told) > LARGE
    assert min(peaks) < 4.5 * LARGE
