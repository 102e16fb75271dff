"""The same tool as a workflow of Tenure: python -m tests.robustness.programs.compared STORE NAME LEDGER_PORT LEASE_SECONDS"""

import asyncio
import os
import sys
from typing import Any

from store_service.client import Context, Worker
from store_service.telemetry import configure_logs
from tests.robustness.ledger import LedgerClient


def main() -> None:
    """Works until SIGTERM."""
    store, name, ledger_port, lease_seconds = sys.argv[1:]
    configure_logs(level="warning")
    ledger = LedgerClient(int(ledger_port))
    worker = Worker(store, concurrency=40, worker_id=f"{name}-{os.getpid()}", lease_seconds=float(lease_seconds))

    @worker.workflow("work")
    async def work(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        async def run() -> dict[str, Any]:
            await asyncio.sleep(args["seconds"])
            await ledger.append(task=args["label"], step="done", token=ctx.fencing_token, worker=str(os.getpid()))
            return {"by": os.getpid()}

        done = await ctx.step("run", run)
        return {"content": [{"type": "text", "text": str(done["by"])}], "structuredContent": done}

    worker.run()


if __name__ == "__main__":
    main()
