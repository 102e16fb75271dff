"""The way of a call with nothing in it: what Tenure's is held against."""

from tests.benchmarks.world import World, until_listening
from tests.pair import free_ports

MODULE = ("-m", "tests.benchmarks.programs.hops")


async def start_store(world: World) -> str:
    """Starts the store. Returns its address."""
    (port,) = free_ports(1)
    world.start("bare-store", *MODULE, "store", str(port), world.dsn)
    await until_listening(port)
    return f"127.0.0.1:{port}"


async def start_bridge(world: World, store: str) -> str:
    """Starts the bridge, and a worker. Returns its URL."""
    (port,) = free_ports(1)
    world.start("bare-worker", *MODULE, "worker", store)
    world.start("bare-bridge", *MODULE, "bridge", str(port), store)
    await until_listening(port)
    return f"http://127.0.0.1:{port}/mcp"
