"""The bridge as a process: it starts without a store, says what it lacks, and ends when asked to."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bridge.listening import listening
from tests.pair import free_ports, told_at
from tests.tied import TIED


@contextmanager
def serving(**settings: str) -> Iterator[subprocess.Popen[str]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    command = [*TIED, sys.executable, "-m", "mcp_bridge", "serve"]
    with subprocess.Popen(command, env={**inherited, **settings}, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_starts_without_a_store_and_ends_with_0_on_sigterm(routes: Path) -> None:
    port, admin_port, nowhere = free_ports(3)
    settings = {
        "TENURE_BRIDGE_ROUTES": str(routes),
        "TENURE_BRIDGE_PORT": str(port),
        "TENURE_BRIDGE_ADMIN_PORT": str(admin_port),
        "TENURE_BRIDGE_STORE": f"127.0.0.1:{nowhere}",
    }
    with serving(**settings) as process:
        assert process.stderr is not None
        started = json.loads(process.stderr.readline())
        assert (started["event"], started["port"]) == ("bridge_started", port)
        assert told_at(admin_port, "/livez")[0] == 200
        assert told_at(admin_port, "/readyz")[0] == 503
        assert told_at(port, "/mcp")[0] == 405
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in process.stderr]
        assert process.wait(timeout=30) == 0
    assert lines[-1]["event"] == "bridge_stopped"


async def test_sigterm_answers_whoever_listens(routes: Path) -> None:
    port, admin_port, nowhere = free_ports(3)
    settings = {
        "TENURE_BRIDGE_ROUTES": str(routes),
        "TENURE_BRIDGE_PORT": str(port),
        "TENURE_BRIDGE_ADMIN_PORT": str(admin_port),
        "TENURE_BRIDGE_STORE": f"127.0.0.1:{nowhere}",
    }
    with serving(**settings) as process:
        assert process.stderr is not None
        assert json.loads(process.stderr.readline())["event"] == "bridge_started"
        async with listening(port, tools=True) as stream:
            assert (await stream.frame())["method"] == "notifications/subscriptions/acknowledged"
            process.send_signal(signal.SIGTERM)
            (last,) = await stream.rest()
            assert last["result"]["resultType"] == "complete"
        assert await asyncio.to_thread(process.wait, 30) == 0


def test_it_refuses_an_address_that_others_can_reach(routes: Path) -> None:
    with serving(TENURE_BRIDGE_ROUTES=str(routes), TENURE_BRIDGE_HOST="0.0.0.0") as process:
        assert process.stderr is not None
        assert "TENURE_BRIDGE_HOST" in process.stderr.read()
        assert process.wait(timeout=30) == 1


def test_it_refuses_a_tenant_without_tools(routes: Path) -> None:
    with serving(TENURE_BRIDGE_ROUTES=str(routes), TENURE_BRIDGE_DEV_TENANT="acme", TENURE_BRIDGE_PORT="0") as process:
        assert process.stderr is not None
        assert "TENURE_BRIDGE_DEV_TENANT is acme" in process.stderr.read()
        assert process.wait(timeout=30) == 1
