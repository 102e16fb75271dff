"""The same killing done to FastMCP on Redis and to Tenure on Postgres: python -m tests.robustness.against_fastmcp

Two trials: a worker is stopped past its redelivery, with tasks under way, and goes on; the place where tasks are kept is killed
after it acknowledged some. What each system lost or changed is printed as JSON, and kept in `.tenure/robustness`.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from mcp_bridge.client import HandleExpired, Policy, TaskClient, TaskHandle
from tests.pair import ROOT, Pair, Process, free_ports
from tests.robustness.ledger import Ledger, read_effects
from tests.tied import TIED

TASKS: Final = 10
LOSE: Final = 50
LEASE_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 120.0
ROUTES: Final = """
version: 1
tenants:
  dev:
    tools:
      - {name: work, workflow: work, task: required, input_schema: {type: object}, poll_interval: 50ms, ttl: 1h}
"""


async def create(url: str, count: int, *, seconds: float, prefix: str) -> list[TaskHandle]:
    """So many acknowledged tasks."""
    async with TaskClient(url) as client:
        made = []
        for number in range(count):
            outcome = await client.call_tool_outcome("work", {"label": f"{prefix}-{number}", "seconds": seconds})
            assert isinstance(outcome, TaskHandle), outcome
            made.append(outcome)
        return made


async def results(url: str, handles: Sequence[TaskHandle], *, seconds: float = PATIENCE_SECONDS) -> list[str]:
    """What each task says now that it came to, or how it is not there."""
    found = []
    async with TaskClient(url, policy=Policy(deadline_seconds=seconds)) as client:
        for handle in handles:
            try:
                result = await client.wait_task(TaskHandle(handle.task_id, url, "work"))
                found.append(json.dumps(result.structured_content, sort_keys=True))
            except HandleExpired:
                found.append("not found")
            except Exception as error:
                found.append(type(error).__name__)
    return found


async def pause_past_redelivery(url: str, workers: Sequence[Process], ledger: Path, *, prefix: str) -> dict[str, Any]:
    """Stops a worker that has tasks under way until others have ended them, then lets it go on."""
    handles = await create(url, TASKS, seconds=1.0, prefix=prefix)
    await asyncio.sleep(0.3)
    workers[0].send(signal.SIGSTOP)
    await asyncio.sleep(LEASE_SECONDS * 4)
    first = await results(url, handles)
    workers[0].send(signal.SIGCONT)
    await asyncio.sleep(LEASE_SECONDS * 4)
    second = await results(url, handles)
    tried = [effect for effect in read_effects(ledger) if effect.task.startswith(prefix)]
    effects = Counter(effect.task for effect in tried)
    taken = Counter(effect.task for effect in tried if effect.is_accepted)
    return {
        "tasks": TASKS, "ended": sum("by" in each for each in first),
        "results that changed after they were read": sum(a != b for a, b in zip(first, second, strict=True)),
        "effects outside that were tried twice": sum(count > 1 for count in effects.values()),
        "effects outside that the fence let pass twice": sum(count > 1 for count in taken.values()),
    }  # fmt: skip


async def tenure(folder: Path) -> dict[str, Any]:
    """Both trials on Tenure."""
    routes = folder / "routes.yaml"
    routes.write_text(ROUTES)
    (ledger_port,) = free_ports(1)
    async with ledger_at(folder / "tenure.jsonl", ledger_port) as ledger:
        pair = Pair(folder / "pair", routes=routes)
        await asyncio.to_thread(pair.start)
        try:
            workers = [
                pair.start_worker(name, "tests.robustness.programs.compared", str(ledger_port), str(LEASE_SECONDS))
                for name in ("one", "two")
            ]
            await results(pair.url, await create(pair.url, 2, seconds=0, prefix="warm"))
            paused = await pause_past_redelivery(pair.url, workers, ledger, prefix="paused")
            for worker in workers:
                worker.stop()
            made = await create(pair.url, LOSE, seconds=0, prefix="kept")
            await asyncio.to_thread(pair.postgres.stop, "immediate")
            await asyncio.to_thread(pair.postgres.start)
            pair.start_worker("three", "tests.robustness.programs.compared", str(ledger_port), str(LEASE_SECONDS))
            found = await results(pair.url, made)
        finally:
            await asyncio.to_thread(pair.stop)
    return {"a worker stopped past its lease": paused, "Postgres killed after acknowledgements": _lost(found)}


async def fastmcp(folder: Path) -> dict[str, Any]:
    """Both trials on FastMCP, the second with Redis as it comes and as it forgets least but for each write."""
    ledger_port, redis_port, *ports = free_ports(4)
    report: dict[str, Any] = {}
    async with ledger_at(folder / "fastmcp.jsonl", ledger_port) as ledger:
        redis = Redis(folder / "redis", redis_port)
        servers = [serve(folder, port, redis_port, ledger_port) for port in ports]
        try:
            for port in ports:
                await until_served(port)
            url = f"http://127.0.0.1:{ports[1]}/mcp"
            await results(url, await create(url, 2, seconds=0, prefix="warm"))
            report["a worker stopped past its redelivery"] = await pause_past_redelivery(url, servers, ledger, prefix="paused")
        finally:
            for server in servers:
                server.kill()
            redis.kill()
        for name, options in {
            "as it comes": [], "appendonly, everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
            "appendonly, always": ["--appendonly", "yes", "--appendfsync", "always"],
        }.items():  # fmt: skip
            report[f"Redis killed after acknowledgements, {name}"] = await _kill_redis(folder, name, options, ledger_port)
    return report


async def _kill_redis(folder: Path, name: str, options: list[str], ledger_port: int) -> dict[str, Any]:
    """Tasks that wait behind others when Redis is lost, and what is known of them when it is back."""
    port, redis_port = free_ports(2)
    place = folder / f"redis-{name.replace(' ', '-').replace(',', '')}"
    redis = Redis(place, redis_port, options)
    server = serve(folder, port, redis_port, ledger_port)
    try:
        await until_served(port)
        url = f"http://127.0.0.1:{port}/mcp"
        await results(url, await create(url, 2, seconds=0, prefix=f"warm {name}"))
        made = await create(url, LOSE, seconds=0.5, prefix=f"kept {name}")
        redis.kill()
        redis = Redis(place, redis_port, options)
        await asyncio.sleep(8)  # its workers come back after 5 s
        return _lost(await results(url, made, seconds=10))
    finally:
        server.kill()
        redis.kill()


def _lost(found: list[str]) -> dict[str, Any]:
    ended = sum("by" in each for each in found)
    return {
        "acknowledged": len(found),
        "ended": ended,
        "lost": len(found) - ended,
        "as": dict(Counter(x for x in found if "by" not in x)),
    }


def serve(folder: Path, port: int, redis_port: int, ledger_port: int) -> Process:
    """A FastMCP server and worker."""
    arguments = [str(port), str(redis_port), str(ledger_port), str(LEASE_SECONDS)]
    return Process(
        f"fastmcp-{port}", ["-m", "tests.robustness.programs.fastmcp_server", *arguments], environment={},
        log=folder / f"fastmcp-{port}.log",
    )  # fmt: skip


async def until_served(port: int) -> None:
    """Waits until somebody listens."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


class Redis:
    """A Redis server of our own."""

    def __init__(self, folder: Path, port: int, options: Sequence[str] = ()) -> None:
        folder.mkdir(exist_ok=True)
        program = shutil.which("redis-server") or "redis-server"
        command = [*TIED, program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        until = time.monotonic() + 30
        while subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True, check=False).stdout != b"PONG\n":
            assert time.monotonic() < until, "redis-server does not answer"
            time.sleep(0.05)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()


@contextlib.asynccontextmanager
async def ledger_at(path: Path, port: int) -> AsyncIterator[Path]:
    """The world outside."""
    ledger = Ledger(path, port, is_buffered=False)
    await ledger.start()
    try:
        yield path
    finally:
        await ledger.stop()


async def compare() -> dict[str, Any]:
    """Both systems, one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-compared-"))
    folder.chmod(0o755)
    try:
        redis = (
            subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True)
            .stdout.split("v=")[1]
            .split()[0]
        )
        return {
            "versions": {"fastmcp": version("fastmcp"), "pydocket": version("pydocket"), "redis": redis,
                         "tenure": version("tenure")},
            "fastmcp": await fastmcp(folder), "tenure": await tenure(folder),
        }  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Prints the comparison."""
    if shutil.which("redis-server") is None:
        print("redis-server is not installed: apt-get install redis-server", file=sys.stderr)
        return 2
    report = asyncio.run(compare())
    text = json.dumps(report, indent=1)
    place = ROOT / ".tenure" / "robustness"
    place.mkdir(parents=True, exist_ok=True)
    (place / "against-fastmcp.json").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
