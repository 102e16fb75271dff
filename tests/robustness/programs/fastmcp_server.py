"""FastMCP on Redis, with a worker in it.

python -m tests.robustness.programs.fastmcp_server PORT REDIS_PORT LEDGER_PORT REDELIVERY_SECONDS
"""

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension

from tests.robustness.ledger import LedgerClient


def main() -> None:
    """Serves until SIGTERM."""
    port, redis_port, ledger_port, redelivery_seconds = sys.argv[1:]
    ledger = LedgerClient(int(ledger_port))
    server: FastMCP[Any] = FastMCP("compared")
    extension = TasksExtension(
        url=f"redis://127.0.0.1:{redis_port}/0", redelivery_timeout=timedelta(seconds=float(redelivery_seconds)), concurrency=40
    )  # fmt: skip
    server.add_extension(extension)

    @server.tool(task=True)
    async def work(label: str, seconds: float) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        await ledger.append(task=label, step="done", token=0, worker=str(os.getpid()))
        return {"by": os.getpid()}

    server.run(transport="http", host="127.0.0.1", port=int(port), show_banner=False)


if __name__ == "__main__":
    main()
