"""Claims and finishes in batches of 100, by the store's own statements, without gRPC and without a worker.

python -m tests.benchmarks.programs.direct DSN COUNT
"""

import asyncio
import json
import sys
import time
from hashlib import sha256
from typing import Final
from uuid import uuid4

import uvloop
from prometheus_client import CollectorRegistry

from store_service.db.leases import LeaseRows
from store_service.db.pool import open_database
from store_service.model.leases import Claim, Disposition, Finish, LeasedTask, WorkflowVersion
from store_service.model.payloads import Payload

BATCH: Final = 100
LANES: Final = 2
RESULT: Final = Payload("application/json", b'{"content":[]}')
DIGEST: Final = sha256(RESULT.data).digest()


async def main(dsn: str, count: int) -> None:
    """Takes and ends so many tasks; prints the seconds."""
    database = await open_database(dsn, size=4 * LANES, registry=CollectorRegistry())  # a quarter may wait in turn
    rows, left = LeaseRows(database), count
    began = time.perf_counter()

    async def lane(name: str) -> None:
        nonlocal left
        while left > 0:
            taken = (await rows.claim_tasks_in_turn(_claim(name))).tasks
            left -= len(taken)
            if taken:
                await rows.finish_tasks([_finish(one) for one in taken])

    await asyncio.gather(*(lane(f"direct-{number}") for number in range(LANES)))
    print(json.dumps({"seconds": time.perf_counter() - began}))
    await database.close()


def _claim(name: str) -> Claim:
    return Claim(
        request_id=uuid4().hex, worker_id=name, workflows=(WorkflowVersion("direct", 1, 30_000),), tenant_ids=(),
        limit=BATCH, wait_ms=0,
    )  # fmt: skip


def _finish(taken: LeasedTask) -> tuple[Finish, bytes]:
    return Finish(lease=taken.lease, disposition=Disposition.COMPLETED, payload=RESULT), DIGEST


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
