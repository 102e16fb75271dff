"""Each symptom of the README's table is brought about, and what the table names shows it."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from mcp_bridge.client import TaskClient, TaskHandle
from store_service.client import Context, Worker
from tests.bridge.client import TASKS, Client, client_of
from tests.conftest import Clock, Stubs, bridge_on, started
from tests.mcp_client.test_command import tenure
from tests.pair import ROOT, free_ports, metrics_at
from tests.readmes.test_table import names_in
from tests.security.authority import PUBLIC_URL, STATE_KEY, Authority
from tests.store.builders import TENANT, claim, until
from tests.store.moving import BrokenOff, move, stay

HERE: Final = "tests/system/test_troubles.py"
SHOWN: Final = {
    "a task stays `working`": f"{HERE}::test_a_task_that_no_worker_asks_for",
    "it goes from worker to worker": f"{HERE}::test_a_task_whose_worker_is_lost",
    "a worker logs that a lease is lost": "tests/client/test_leases.py::test_lease_lost_on_any_call_stops_the_work_at_once",
    "`-32021`": f"{HERE}::test_a_client_that_does_not_declare_what_a_tool_needs",
    "an answer changes nothing": f"{HERE}::test_an_answer_to_nothing_that_is_asked",
    "`-32602`": f"{HERE}::test_an_id_of_another_token",
    "`-32020`": f"{HERE}::test_a_header_that_says_something_else",
    "401": f"{HERE}::test_a_call_without_a_token",
    "403": f"{HERE}::test_a_token_that_lacks_a_scope",
    "429": f"{HERE}::test_polls_that_are_too_fast",
    "polls are slow": f"{HERE}::test_polls_that_are_slow",
    "503 for one tenant alone": f"{HERE}::test_a_tenant_that_is_between_two_cells",
    "503, or `/readyz`": f"{HERE}::test_a_store_that_is_away",
}
ROUTES: Final = f"""
version: 1
tenants:
  {TENANT}:
    grants: {{call: anyone}}
    tools:
      - {{name: asks, workflow: asks, task: optional, input_schema: {{type: object}}}}
      - {{name: nobodys, workflow: nobody, task: required, longest_poll_interval: 5s, input_schema: {{type: object}}}}
      - name: guarded
        workflow: asks
        task: optional
        advertise: true
        grants: {{call: {{scopes: [reports:admin]}}}}
        input_schema: {{type: object}}
"""
SURE: Final = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}


def test_every_symptom_of_the_table_is_brought_about() -> None:
    table = (ROOT / "README.md").read_text().partition("| what you see |")[2].partition("\n\n")[0]
    symptoms = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[2:]]
    assert [len([name for name in SHOWN if one.startswith(name)]) for one in symptoms] == [1] * len(SHOWN)
    for test in SHOWN.values():
        file, _, name = test.partition("::")
        assert name in names_in(file), test


@dataclass(frozen=True)
class Scene:
    """A bridge that asks who calls, its store, and a token."""

    raw: Client
    admin_port: int
    store: Stubs
    dsn: str
    authority: Authority
    routes: Path

    async def tenure(self, *arguments: str, token: str | None = None) -> tuple[int, Any, str]:
        """Runs the command, as whoever the token names."""
        told = self.token() if token is None else token
        return await asyncio.to_thread(tenure, self.raw.url, *arguments, TENURE_TOKEN=told)

    def token(self, **claims: Any) -> str:
        """A token for the tenant."""
        return self.authority.token(**{"aud": f"{PUBLIC_URL}/mcp", "tenant": TENANT, "scope": "", **claims})

    async def doctor(self, service: str) -> list[dict[str, str]]:
        """What a doctor says that is not well."""
        settings = {"STORE_DSN": self.dsn, "STORE_ALLOW_TEST_CLOCK": "true"}
        if service == "bridge":
            settings = {
                "BRIDGE_ROUTES": str(self.routes), "BRIDGE_STORE": self.store.address, "BRIDGE_PUBLIC_URL": PUBLIC_URL,
                "BRIDGE_ISSUERS": str(self.authority.issuers), "BRIDGE_STATE_KEYS": STATE_KEY,
            }  # fmt: skip
        return await asyncio.to_thread(doctor, service, settings)


def doctor(service: str, settings: dict[str, str]) -> list[dict[str, str]]:
    package = {"store": "store_service", "bridge": "mcp_bridge"}[service]
    environment = {**os.environ, **{f"TENURE_{name}": value for name, value in settings.items()}}
    command = [sys.executable, "-m", package, "doctor"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return [found for line in done.stdout.splitlines() if (found := json.loads(line))["verdict"] != "well"]


@pytest.fixture
async def scene(dsn: str, store: Stubs, tmp_path: Path) -> AsyncIterator[Scene]:
    """The pair, and a worker that asks."""
    routes = tmp_path / "routes.yaml"
    routes.write_text(ROUTES)
    authority = Authority(tmp_path)
    worker = Worker(store.address, tenants=[TENANT])

    @worker.workflow("asks")
    async def asks(ctx: Context, _: dict[str, Any]) -> str:
        return (await ctx.ask("really", "Really?", SURE)).action

    async with (
        started(bridge_on(routes, store=store.address, **authority.settings)) as bridge,
        client_of(bridge) as raw,
        worker,
    ):
        running = Scene(raw, bridge.admin_port, store, dsn, authority, routes)
        raw.token = running.token()
        yield running


async def created(scene: Scene, tool: str) -> str:
    """The id of a new task."""
    return str((await scene.raw.call(tool, capabilities={**TASKS, "elicitation": {}})).result["taskId"])


async def test_a_task_that_no_worker_asks_for(scene: Scene) -> None:
    task_id = await created(scene, "nobodys")
    assert "No worker asks for nobody version 1" in (await scene.tenure("task", "why", task_id))[1]["why"]
    told = [found["text"] for found in await scene.doctor("bridge") if found["subject"] == f"tenant {TENANT}"]
    assert told == ["tool nobodys: no worker asked for nobody version 1 during the last day"]


async def test_a_task_whose_worker_is_lost(scene: Scene, clock: Clock) -> None:
    task_id = await created(scene, "nobodys")
    await scene.store.leases.LeaseTasks(claim(workflow="nobody", lease_ms=600_000))
    assert "A worker is at it since" in (await scene.tenure("task", "why", task_id))[1]["why"]

    await clock.advance(seconds=601)

    async def is_counted() -> bool:
        return bool(re.search(r'tenure_store_due_total\{event="LEASE_EXPIRED"\} [1-9]', metrics_at(scene.store.admin_port)))

    await until(is_counted, "its lease ran out")


async def test_a_client_that_does_not_declare_what_a_tool_needs(scene: Scene) -> None:
    refused = await scene.raw.call("nobodys")
    assert (refused.code, "io.modelcontextprotocol/tasks" in json.dumps(refused.json["error"]["data"])) == (-32021, True)
    assert "requiredCapabilities" in refused.json["error"]["data"]
    code, handle, _ = await scene.tenure("call", "nobodys", "--task")
    assert (code, set(handle)) == (0, {"task_id", "tool", "url"})


async def test_an_answer_to_nothing_that_is_asked(scene: Scene) -> None:
    code, _, said = await scene.tenure("call", "asks")
    assert code == 3
    task_id = said.split("task ")[1].split(" ")[0]
    assert (await scene.tenure("task", "answer", task_id, "other", "--content", '{"sure": true}'))[0] == 0
    (key,) = (await scene.tenure("task", "get", task_id))[1]["inputRequests"]
    code, _, said = await scene.tenure("task", "answer", task_id, key, "--content", '{"sure": "perhaps"}')
    assert (code, "sure" in said) == (4, True)
    assert (await scene.tenure("task", "answer", task_id, key, "--content", '{"sure": true}'))[0] == 0
    async with TaskClient(scene.raw.url, token=scene.token()) as client:
        assert (await client.wait_task(TaskHandle(task_id, scene.raw.url))).text == "accept"


async def test_an_id_of_another_token(scene: Scene) -> None:
    task_id = await created(scene, "nobodys")
    assert (await scene.tenure("task", "get", task_id))[0] == 0
    assert (await scene.tenure("task", "get", task_id, token=scene.token(sub="ben")))[0] == 5


async def test_a_header_that_says_something_else(scene: Scene) -> None:
    refused = await scene.raw.call("nobodys", Mcp_Name="other")
    assert (refused.code, "Mcp-Name" in refused.json["error"]["message"]) == (-32020, True)
    assert (await scene.tenure("tools", "--url", scene.raw.url))[0] == 0


async def test_a_call_without_a_token(scene: Scene) -> None:
    scene.raw.token = None
    assert "Bearer" in (await scene.raw.ask("tools/list")).headers["WWW-Authenticate"]
    code, _, said = await scene.tenure("tools", token="")
    assert (code, "name a bearer token by TENURE_TOKEN" in said) == (4, True)
    scene.authority.jwks.unlink()
    wrong = [found["text"] for found in await scene.doctor("bridge") if found["subject"] == scene.authority.issuer]
    assert any("cannot be read" in text for text in wrong)


async def test_a_token_that_lacks_a_scope(scene: Scene) -> None:
    code, _, said = await scene.tenure("call", "guarded")
    assert (code, "its scopes: reports:admin" in said) == (4, True)


async def test_polls_that_are_too_fast(scene: Scene) -> None:
    task_id = await created(scene, "nobodys")
    while (answer := await scene.raw.task("get", task_id)).status == 200:
        pass
    assert (answer.code, int(answer.headers["Retry-After"]) > 0) == (42900, True)
    assert 'tenure_bridge_calls_total{method="tasks/get",outcome="42900"}' in metrics_at(scene.admin_port)


async def test_polls_that_are_slow(scene: Scene) -> None:
    task_id = await created(scene, "nobodys")
    assert 0 < (await scene.tenure("task", "get", task_id))[1]["pollIntervalMs"] <= 5_000
    assert [found for found in await scene.doctor("store") if found["subject"] == "hints"] == []


async def test_a_tenant_that_is_between_two_cells(scene: Scene, databases: Any) -> None:
    task_id = await created(scene, "nobodys")
    there = await databases.take()
    with pytest.raises(BrokenOff):
        await move(scene.dsn, there, until="frozen")
    assert (await scene.raw.task("get", task_id)).status == 503
    (found,) = [one for one in await scene.doctor("store") if one["subject"] == f"tenant {TENANT}"]
    assert "every call of it is refused" in found["text"]
    await stay(scene.dsn, there)
    assert (await scene.raw.task("get", task_id)).status == 200
    await databases.give_back(there)


async def test_a_store_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "routes.yaml").write_text(ROUTES.replace(TENANT, "dev", 1))
    (nowhere,) = free_ports(1)
    address = f"127.0.0.1:{nowhere}"
    async with (
        started(bridge_on(tmp_path / "routes.yaml", store=address, store_retry_seconds=0)) as bridge,
        client_of(bridge) as client,
    ):
        assert (await client.call("nobodys", tasks=True)).status == 503
        url = f"http://127.0.0.1:{bridge.admin_port}/readyz"
        assert (await client.send(b"", {}, verb="GET", url=url)).status == 503
    settings = {"BRIDGE_ROUTES": str(tmp_path / "routes.yaml"), "BRIDGE_STORE": address}
    (found,) = [one for one in await asyncio.to_thread(doctor, "bridge", settings) if one["verdict"] == "wrong"]
    assert f"{address} is not reached" in found["text"]
    settings = {"STORE_DSN": f"postgresql://127.0.0.1:{nowhere}/none"}
    (found,) = [one for one in await asyncio.to_thread(doctor, "store", settings) if one["verdict"] == "wrong"]
    assert found["subject"] == "database"
