"""`server/discover`. Source: contract, section 3."""

from typing import Final

from mcp_bridge.methods.calls import Call, Method
from mcp_bridge.wire.mcp import SUPPORTED_VERSIONS, TASKS
from mcp_bridge.wire.results import Results, join

TTL_MS: Final = 60_000
INSTRUCTIONS: Final = (
    "The work behind these tools is durable: it outlives the call, the connection and the server. A call may be answered "
    "with a task, which is read with tasks/get until it has ended; its id can be kept and read later by the same user."
)


def make_discover(results: Results) -> Method:
    """The method. It says the same to everybody."""
    answer = results.write(
        join(
            {
                "supportedVersions": SUPPORTED_VERSIONS,
                "capabilities": {"tools": {"listChanged": True}, "extensions": {TASKS: {}}},
                "instructions": INSTRUCTIONS,
                "ttlMs": TTL_MS,
                "cacheScope": "public",
            }
        )
    )

    async def discover(_call: Call) -> bytes:
        return answer

    return discover
