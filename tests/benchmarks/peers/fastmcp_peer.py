"""FastMCP with its tasks extension: a tool that answers so many bytes, and one that keeps a worker busy.

python fastmcp_peer.py REDIS PORT BYTES CONCURRENCY

Settings: Redis, as https://gofastmcp.com/docs/servers/tasks has it for production; stateless and with plain JSON, as
https://gofastmcp.com/deployment/http has it for many servers; as many connections to Redis as there may be requests, as
https://github.com/chrisguidry/docket/blob/main/docs/production.md has it; uvicorn with uvloop and httptools.
"""

import asyncio
import sys

import uvicorn
from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension


def main(redis: str, port: int, size: int, concurrency: int) -> None:
    mcp = FastMCP("bench")
    mcp.add_extension(TasksExtension(url=f"{redis}?max_connections=1000", concurrency=concurrency))

    @mcp.tool(task=True)
    async def job(n: int = 0, text: str = "") -> str:
        return "x" * size

    @mcp.tool(task=True)
    async def wait() -> str:
        await asyncio.Event().wait()
        return ""

    app = mcp.http_app(json_response=True, stateless_http=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", loop="uvloop", http="httptools", access_log=False,
                timeout_graceful_shutdown=1)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
