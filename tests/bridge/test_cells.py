"""Tenants in several cells behind one bridge: each call goes to its tenant's, and one that is away is so for its own alone."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from taskstore.v1 import tasks_pb2

from mcp_bridge import cells
from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from store_service.client import StoreError
from tests.bridge.client import Answer, Client, client_of
from tests.bridge.fake_store import FakeTaskStore
from tests.bridge.holding import DONE, hold
from tests.bridge.test_reload import put
from tests.conftest import started
from tests.security.authority import PUBLIC_URL, Authority
from tests.store.builders import until

AWAY = StoreError("the connection broke", code=grpc.StatusCode.UNAVAILABLE)
DEFAULT, EAST, WEST = "127.0.0.1:1", "dns:///east.example:7233", "dns:///west.example:7233"


def written(**tenant_cells: str) -> str:
    """A route file with these tenants, each in its cell; an empty one is the default."""
    text = f"version: 1\ncells: {{east: '{EAST}', west: '{WEST}'}}\ntenants:\n"
    for tenant, cell in tenant_cells.items():
        text += f"  {tenant}:\n" + (f"    cell: {cell}\n" if cell else "")
        text += (
            "    grants: {call: anyone}\n    tools: [{name: t, workflow: w, task: optional, input_schema: {type: object}}]\n"
        )
    return text


class OneCell(FakeTaskStore):
    """The stores of one cell."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.is_closed = False

    async def create_task(
        self, request: tasks_pb2.CreateTaskRequest, *, timeout_seconds: float = 10
    ) -> tasks_pb2.CreateTaskResponse:
        """It may take a while."""
        self.asked.set()
        await self.gate.wait()
        return await super().create_task(request, timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        """It is noted."""
        self.is_closed = True


@dataclass(frozen=True)
class Scene:
    """A bridge, its cells by their addresses, and a client of each tenant."""

    bridge: Bridge
    routes: Path
    stores: Mapping[str, OneCell]
    clients: Mapping[str, Client]

    def tenants(self, address: str) -> list[str]:
        """Whose tasks were created in a cell, one after the other."""
        return [request.tenant_id for request in self.stores[address].created]

    async def call(self, tenant: str) -> Answer:
        """Calls the tenant's tool."""
        return await self.clients[tenant].call("t", tasks=True)

    async def look(self, path: str) -> Answer:
        """What the bridge tells of itself."""
        url = f"http://127.0.0.1:{self.bridge.admin_port}{path}"
        return await self.clients["acme"].send(b"", {"Authorization": ""}, verb="GET", url=url)

    async def figures(self, name: str) -> dict[str, float]:
        """A figure of each cell."""
        families = text_string_to_metric_families((await self.look("/metrics")).body.decode())
        samples = [one for family in families for one in family.samples if one.name == name]
        return {one.labels["cell"]: one.value for one in samples}


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """The tenant acme in the default cell, beta in the east, carol in the west."""
    monkeypatch.setattr(cells, "ASK_SECONDS", 0.02)
    authority, stores = Authority(tmp_path), {address: OneCell() for address in (DEFAULT, EAST, WEST)}
    routes = tmp_path / "routes.yaml"
    routes.write_text(written(acme="", beta="east", carol="west"))
    config = Config(
        routes=str(routes),
        store=DEFAULT,
        **authority.settings,
        port=0,
        admin_port=0,
        drain_seconds=0,
    )
    async with started(Bridge(config, connect=stores.__getitem__)) as bridge, aiohttp.ClientSession() as session:
        clients = {tenant: Client(session, bridge.port) for tenant in ("acme", "beta", "carol")}
        for tenant, client in clients.items():
            client.token = authority.token(sub="ann", aud=f"{PUBLIC_URL}/mcp", tenant=tenant)
        yield Scene(bridge, routes, stores, clients)
    assert all(store.is_closed for store in stores.values())


async def test_each_call_goes_to_the_cell_of_its_tenant(scene: Scene) -> None:
    ids = {tenant: (await scene.call(tenant)).result["taskId"] for tenant in ("acme", "beta", "carol")}
    assert [scene.tenants(address) for address in (DEFAULT, EAST, WEST)] == [["acme"], ["beta"], ["carol"]]
    for tenant, task_id in ids.items():
        assert (await scene.clients[tenant].task("get", task_id)).result["status"] == "working"
        assert (await scene.clients[tenant].task("cancel", task_id)).status == 200


async def test_a_cell_that_is_away_is_away_for_its_own_tenants_alone(scene: Scene) -> None:
    await until(lambda: reached(scene, default=1, east=1, west=1), "the stores are reached so")
    scene.stores[EAST].trouble = AWAY
    await until(lambda: reached(scene, default=1, east=0, west=1), "the stores are reached so")
    assert (await scene.call("beta")).status == 503
    assert [(await scene.call(tenant)).status for tenant in ("acme", "carol")] == [200, 200]
    assert (await scene.look("/readyz")).status == 200, "the others are served"
    assert await scene.figures("tenure_bridge_cell_failures_total") == {"default": 0, "east": 1, "west": 0}
    scene.stores[EAST].trouble = None
    assert (await scene.call("beta")).status == 200


async def test_a_cell_that_does_not_answer_keeps_no_other_tenants_calls(scene: Scene) -> None:
    scene.stores[EAST].gate.clear()
    waiting = asyncio.create_task(scene.call("beta"))
    async with asyncio.timeout(30):
        await scene.stores[EAST].asked.wait()
        assert [(await scene.call(tenant)).status for tenant in ("acme", "carol")] == [200, 200]
    assert not waiting.done()
    scene.stores[EAST].gate.set()
    assert (await waiting).status == 200


async def test_a_bridge_is_ready_until_no_cell_is_there(scene: Scene) -> None:
    for store in scene.stores.values():
        store.trouble = AWAY
    await until(lambda: reached(scene, default=0, east=0, west=0), "the stores are reached so")
    answer = await scene.look("/readyz")
    assert answer.status == 503
    assert b"default cannot be reached; east cannot be reached; west cannot be reached" in answer.body


async def test_a_tenant_whose_route_leads_elsewhere_is_served_there_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "RETIRE_SECONDS", 0.01)
    put(scene.routes, written(acme="west", beta="east", carol="west"))
    await until(lambda: reached(scene, east=1, west=1), "the stores are reached so")
    assert (await scene.call("acme")).status == 200
    assert (scene.tenants(DEFAULT), scene.tenants(WEST)) == ([], ["acme"])
    async with asyncio.timeout(30):
        while not scene.stores[DEFAULT].is_closed:  # nobody lives there any more
            await asyncio.sleep(0.01)


async def test_a_call_that_fails_while_its_tenant_moves_is_made_again_in_the_other_cell(scene: Scene) -> None:
    scene.stores[EAST].gate.clear()
    calling = asyncio.create_task(scene.call("beta"))
    async with asyncio.timeout(30):
        await scene.stores[EAST].asked.wait()
    put(scene.routes, written(acme="", beta="west", carol="west"))
    await until(lambda: reached(scene, default=1, west=1), "the stores are reached so")
    scene.stores[EAST].trouble = AWAY
    scene.stores[EAST].gate.set()
    assert (await calling).status == 200
    assert scene.tenants(WEST) == ["beta"]


@pytest.fixture
def frequent_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds a call says so many times a second."""
    monkeypatch.setattr("mcp_bridge.methods.held.HeldCalls.__init__.__kwdefaults__", {"renew_seconds": 0.01})


@pytest.mark.usefixtures("frequent_renewals")
async def test_held_calls_of_a_tenant_that_the_file_names_no_more_go_on_in_its_cell(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "RETIRE_SECONDS", 0.01)
    east, beta = scene.stores[EAST], scene.clients["beta"]
    stays, task_id = await hold(beta, east, "t")
    east.watching.clear()
    leaves, other_id = await hold(beta, east, "t")
    put(scene.routes, written(acme="", carol="west"))
    await until(lambda: reached(scene, default=1, west=1), "nobody else lives in the east")
    async with asyncio.timeout(30):
        for _ in range(5):
            east.heard.clear()
            await east.heard.wait()
        leaves.cancel()
        while (other_id, 10_000) not in east.attached:  # the grace of a caller that left
            await asyncio.sleep(0.01)
        assert [store.is_closed for store in scene.stores.values()] == [False] * 3
        await east.complete(task_id, DONE)
        assert (await stays).result["content"] == [{"type": "text", "text": "done"}]
        while not east.is_closed:
            await asyncio.sleep(0.01)
    assert scene.stores[DEFAULT].attached == []


async def test_a_cell_at_another_address_is_spoken_to_there(scene: Scene) -> None:
    put(scene.routes, written(acme="", beta="east").replace(EAST, WEST))
    await until(lambda: reached(scene, default=1, east=1), "the stores are reached so")
    assert (await scene.call("beta")).status == 200
    assert (scene.tenants(EAST), scene.tenants(WEST)) == ([], ["beta"])


async def test_the_tenant_of_development_may_live_in_a_cell(tmp_path: Path) -> None:
    routes, store = tmp_path / "routes.yaml", OneCell()
    routes.write_text(written(dev="east"))
    config = Config(routes=str(routes), port=0, admin_port=0, drain_seconds=0)
    bridge = Bridge(replace(config, store=DEFAULT), connect={EAST: store}.__getitem__)
    async with started(bridge), client_of(bridge) as client:
        assert (await client.call("t", tasks=True)).status == 200
    assert len(store.created) == 1


async def reached(scene: Scene, **expected: float) -> bool:
    return await scene.figures("tenure_bridge_cell_reached") == expected
