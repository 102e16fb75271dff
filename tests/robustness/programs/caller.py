"""A client of a process of its own: python -m tests.robustness.programs.caller URL TOOL KEY"""

import asyncio
import sys

from mcp_bridge.client import Policy, TaskClient


async def main() -> None:
    """Calls a tool, with its deadline, and fails unless there is a result."""
    url, tool, key = sys.argv[1:]
    async with TaskClient(url, policy=Policy(deadline_seconds=120, request_seconds=60)) as client:
        result = await client.call_tool(tool, {"canary": key, "n": 1}, idempotency_key=key)
        assert not result.is_error


if __name__ == "__main__":
    asyncio.run(main())
