"""A worker with nothing to do: python -m tests.benchmarks.programs.worker STORE NAME"""

import sys
from typing import Any

from store_service.client import Context, Worker
from store_service.telemetry import configure_logs

CONCURRENCY = 500


def main() -> None:
    """Works until SIGTERM."""
    configure_logs(level="warning")
    worker = Worker(sys.argv[1], concurrency=CONCURRENCY, worker_id=sys.argv[2])

    @worker.workflow("nothing")
    async def nothing(_ctx: Context, _args: dict[str, Any]) -> dict[str, Any]:
        return {"content": []}

    worker.run()


if __name__ == "__main__":
    main()
