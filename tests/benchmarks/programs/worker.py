"""A worker with nothing to do: python -m tests.benchmarks.programs.worker STORE NAME AT_ONCE"""

import sys
from typing import Any

from store_service.client import Context, Worker
from store_service.telemetry import configure_logs


def main() -> None:
    """Works until SIGTERM."""
    configure_logs(level="warning")
    store, name, at_once = sys.argv[1:]
    worker = Worker(store, concurrency=int(at_once), worker_id=name)

    @worker.workflow("nothing")
    async def nothing(_ctx: Context, _args: dict[str, Any]) -> dict[str, Any]:
        return {"content": []}

    worker.run()


if __name__ == "__main__":
    main()
