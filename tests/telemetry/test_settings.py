"""Traces are off unless they are wished for, and then nothing of them is there; and what the processes send arrives."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_bridge.app import Bridge
from mcp_bridge.client import TaskClient
from mcp_bridge.config import Config as BridgeConfig
from store_service.telemetry.traces import Traces, make_provider
from tests.bridge.client import client_of
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import started
from tests.pair import ROOT, Pair
from tests.telemetry.collector import Collector

OFF = """
import sys
import mcp_bridge.__main__, mcp_bridge.client, store_service.__main__
from mcp_bridge.app import Bridge
from mcp_bridge.config import Config as BridgeConfig
from store_service.client import Worker
from store_service.config import Config
from store_service.server import Store
from store_service.telemetry import configure_logs

configure_logs()
Store(Config(dsn="postgresql://nowhere"))
Bridge(BridgeConfig(routes="none.yaml"))
Worker()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
MISSING = """
import sys
sys.modules["opentelemetry"] = None
from {package}.__main__ import main
sys.exit(main(["serve"]))
"""
DEAF = """
from store_service.client import open_traces
traces = open_traces("deaf")
with traces.within("x", "internal", {}):
    pass
"""
WORKER = """
import sys
from store_service.client import Context, Worker, open_traces
worker = Worker(sys.argv[1], traces=open_traces("reports"))

@worker.workflow("w")
async def w(ctx: Context, args: dict) -> str:
    ctx.log.info("at_work")
    return await ctx.step("s", str, 1)

worker.run()
"""
ROUTES = """
version: 1
tenants: {dev: {tools: [{name: t, workflow: w, task: optional, input_schema: {type: object}}]}}
"""


def python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'proto' / 'gen'}", **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_without_traces_nothing_of_opentelemetry_is_imported(tmp_path: Path) -> None:
    assert python(OFF, tmp_path).stdout == "[]\n"


@pytest.mark.parametrize(("package", "service"), [("store_service", "store"), ("mcp_bridge", "bridge")])
def test_traces_without_their_packages_say_what_to_install(tmp_path: Path, package: str, service: str) -> None:
    settings = {f"TENURE_{service.upper()}_TRACES": "true", "TENURE_STORE_DSN": "x", "TENURE_BRIDGE_ROUTES": "x"}
    needed = {name: value for name, value in settings.items() if name.startswith(f"TENURE_{service.upper()}")}
    done = python(MISSING.format(package=package), tmp_path, **needed)
    assert done.stderr == f"tenure-{service}: opentelemetry is not installed; run: pip install 'tenure[traces]'\n"
    assert done.returncode == 1


def test_a_process_ends_although_its_collector_does_not_answer(tmp_path: Path) -> None:
    done = python(DEAF, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0


async def test_where_opentelemetry_is_told_to_do_nothing_calls_go_on_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    (tmp_path / "routes.yaml").write_text(ROUTES)
    fake, config = FakeTaskStore(), BridgeConfig(routes=str(tmp_path / "routes.yaml"), port=0, admin_port=0, drain_seconds=0)
    bridge = Bridge(config, connect=lambda _: fake, traces=Traces(make_provider("bridge")))
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    async with started(bridge), client_of(bridge) as client:
        for sent in ({}, {"traceparent": parent}):
            assert (await client.call("t", tasks=True, meta_members=sent)).status == 200
    assert [one.contract.trace_parent for one in fake.created] == ["", parent]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Where all processes send their traces."""
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Pair]:
    """The pair and a worker, with traces."""
    folder = tmp_path_factory.mktemp("traces")
    (folder / "routes.yaml").write_text(ROUTES)
    (folder / "traced_worker.py").write_text(WORKER)
    running = Pair(
        folder,
        routes=folder / "routes.yaml",
        durable=False,
        store_settings={"TENURE_STORE_TRACES": "true", **collector.settings},
        bridge_settings={"TENURE_BRIDGE_TRACES": "true", **collector.settings},
        worker_settings={"PYTHONPATH": str(folder), **collector.settings},
    )
    with running:
        running.start_worker("worker", "traced_worker")
        yield running


def lines(pair: Pair, name: str, event: str) -> list[dict[str, Any]]:
    """The log lines of one event."""
    logged = (pair.folder / f"{name}.log").read_text().splitlines()
    return [line for text in logged if text.startswith("{") and (line := json.loads(text))["event"] == event]


async def test_what_the_processes_send_arrives_and_their_log_lines_name_it(pair: Pair, collector: Collector) -> None:
    async with TaskClient(pair.url, capabilities={}) as client:
        assert (await client.call_tool("t", {})).text == "1"
    pair.stop()  # each sends what it has left
    spans = {(service, span.name): span for service, span in collector.spans}
    call, run = spans["tenure-bridge", "tools/call t"], spans["reports", "run w"]
    assert {service for service, span in collector.spans if span.trace_id == call.trace_id} == {"tenure-bridge", "tenure-store"}
    assert {service for service, span in collector.spans if span.trace_id == run.trace_id} == {"reports", "tenure-store"}
    assert [link.span_id for link in run.links] == [call.span_id]
    (line,) = [one for one in lines(pair, "bridge", "call") if one["method"] == "tools/call"]
    assert (line["trace_id"], line["span_id"]) == (call.trace_id.hex(), call.span_id.hex())
    (line,) = [one for one in lines(pair, "store", "call") if one["method"] == "CreateTask"]
    assert line["trace_id"] == call.trace_id.hex()
    (line,) = lines(pair, "worker", "at_work")
    assert (line["trace_id"], line["span_id"]) == (run.trace_id.hex(), run.span_id.hex())
    assert [one for one in lines(pair, "store", "call") if "trace_id" not in one and one["method"] == "CreateTask"] == []
