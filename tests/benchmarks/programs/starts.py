"""A worker that tells, as each task starts, how long ago it was sent: a line of milliseconds, to who listens on a port.

python -m tests.benchmarks.programs.starts STORE PORT
"""

import socket
import sys
import time
from typing import Any

from store_service.client import Context, Worker
from store_service.telemetry import configure_logs


def main() -> None:
    """Works until SIGTERM."""
    configure_logs(level="warning")
    worker = Worker(sys.argv[1])
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as told:

        @worker.workflow("start")
        async def start(_ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
            told.sendall(b"%f\n" % ((time.perf_counter() - args["sent"]) * 1000))
            return {"content": []}

        worker.run()


if __name__ == "__main__":
    main()
