"""A worker that notes how long ago its tasks were sent, in milliseconds.

python -m tests.benchmarks.programs.starts STORE FILE
"""

import sys
import time
from pathlib import Path
from typing import Any

from store_service.client import Context, Worker
from store_service.telemetry import configure_logs


def main() -> None:
    """Works until SIGTERM."""
    configure_logs(level="warning")
    worker = Worker(sys.argv[1])
    with Path(sys.argv[2]).open("w") as told:

        @worker.workflow("start")
        async def start(_ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
            print((time.perf_counter() - args["sent"]) * 1000, file=told, flush=True)
            return {"content": []}

        worker.run()


if __name__ == "__main__":
    main()
