"""What the READMEs say of starting services, as processes."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import grpc.aio
from taskstore.v1 import tasks_pb2_grpc

from store_service.embedded import EmbeddedPostgres
from tests.bridge.client import meta
from tests.conftest import Stubs
from tests.pair import Process, free_ports
from tests.readmes.blocks import blocks
from tests.store.builders import new_task
from tests.telemetry.collector import Collector

BIN = Path(sys.executable).parent


def text(file: str, has: str) -> str:
    """The one block of a README that has these words."""
    (found,) = [one.text for one in blocks() if one.file == file and has in one.text]
    return found


async def test_a_host_starts_the_bridge_by_the_configuration_that_is_shown(store: Stubs, tmp_path: Path) -> None:
    (server,) = json.loads(text("mcp_bridge/README.md", "mcpServers"))["mcpServers"].values()
    routes = tmp_path / "routes.yaml"
    routes.write_text(text("README.md", "# routes.yaml"))
    shown = server["env"]
    assert shown.keys() == {"TENURE_BRIDGE_ROUTES", "TENURE_BRIDGE_STORE"}
    process = await asyncio.create_subprocess_exec(
        BIN / server["command"],
        *server["args"],
        env={"PATH": os.environ["PATH"], "TENURE_BRIDGE_ROUTES": str(routes), "TENURE_BRIDGE_STORE": store.address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta()}}
    async with asyncio.timeout(120):
        printed, _ = await process.communicate(json.dumps(request).encode() + b"\n")
    assert [tool["name"] for tool in json.loads(printed)["result"]["tools"]] == ["greet_all"]
    assert process.returncode == 0


async def test_a_store_sends_its_traces_as_shown(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    lines = text("store_service/README.md", "OTEL_EXPORTER").splitlines()
    exports = dict(re.findall(r"^export (\w+)=(.*)$", "\n".join(lines), re.MULTILINE))
    port, admin_port = free_ports(2)
    with Collector() as collector:
        assert exports.keys() == {"TENURE_STORE_TRACES", "OTEL_EXPORTER_OTLP_ENDPOINT"}
        environment = {
            "PATH": os.environ["PATH"], **exports, **collector.settings, "TENURE_STORE_DSN": postgres.dsn,
            "TENURE_STORE_PORT": str(port), "TENURE_STORE_ADMIN_PORT": str(admin_port),
        }  # fmt: skip
        subprocess.run([BIN / "tenure-store", "migrate"], env=environment, check=True, timeout=120)
        assert lines[-1] == "tenure-store serve"
        store = Process(
            "store",
            ["serve"],
            program=BIN / "tenure-store",
            environment=environment,
            log=tmp_path / "store.log",
            folder=tmp_path,
        )
        try:
            store.wait_ready(admin_port)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                create = tasks_pb2_grpc.TaskServiceStub(channel).CreateTask
                await create(new_task(), metadata=(("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"),))
        finally:
            assert store.stop() == 0
        sent = {(service, span.name) for service, span in collector.spans}
        assert sent == {("tenure-store", "taskstore.v1.TaskService/CreateTask"), ("tenure-store", "create_tasks")}
