"""What a bridge answers when its store, or it itself, is in trouble, and what it tells of itself."""

import asyncio
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mcp_bridge.app import Bridge
from store_service.client import StoreError
from tests.bridge.client import Answer, Client, client_of
from tests.bridge.fake_store import FakeTaskStore
from tests.client.fake_tasks import FakeTasks
from tests.conftest import bridge_on, started


async def test_a_call_is_tried_again_no_longer_than_the_setting_says(routes: Path) -> None:
    with FakeTasks().serve() as store:
        store.answers["CreateTask"].extend(["STORAGE_UNAVAILABLE"] * 2)
        hasty = bridge_on(routes, store=store.address, store_retry_seconds=0)
        async with started(hasty), client_of(hasty) as client:
            answer = await client.call("task", tasks=True)
    assert (answer.status, answer.code) == (503, 50300)
    assert len(store.answers["CreateTask"]) == 1


@pytest.mark.row("T15")
async def test_store_trouble_is_told_safely_and_briefly(client: Client, fake: FakeTaskStore) -> None:
    fake.trouble = StoreError("10.0.0.7:5432 refused", reason="STORAGE_UNAVAILABLE", retry_after_ms=1500)
    answer = await client.call("task", tasks=True, request_id="r")
    assert (answer.status, answer.code, answer.json["id"]) == (503, 50300, "r")
    assert answer.headers["Retry-After"] == "2"
    assert b"10.0.0.7" not in answer.body


@pytest.mark.row("T15")
@pytest.mark.must("T-32")
@pytest.mark.parametrize("trouble", [RuntimeError("secret path /srv"), StoreError("secret field", reason="INVALID_INPUT")])
async def test_a_fault_of_ours_is_answered_under_an_id_that_the_log_has(
    client: Client, fake: FakeTaskStore, trouble: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.trouble = trouble
    answer = await client.call("task", tasks=True)
    assert (answer.status, answer.code) == (200, -32603)
    assert b"secret" not in answer.body
    fake.trouble = None
    logged = "".join(capfd.readouterr())
    assert answer.json["error"]["data"]["correlationId"] in logged


@pytest.mark.row("S1")
async def test_calls_are_counted_without_naming_anybody(client: Client, bridge: Bridge) -> None:
    await client.call("task", tasks=True)
    await client.ask("no/such/method")
    await client.task("get", "x", name=None)
    answer = await client.send(b"", {}, verb="GET", url=f"http://127.0.0.1:{bridge.admin_port}/metrics")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert samples["tenure_bridge_calls_total", (("method", "tools/call"), ("outcome", "OK"))] == 1
    assert samples["tenure_bridge_calls_total", (("method", "other"), ("outcome", "-32601"))] == 1
    assert samples["tenure_bridge_missing_mcp_name_total", ()] == 1
    assert samples["tenure_bridge_held_calls", ()] == 0
    ours = {name for sample, labels in samples for name, _ in labels if sample.startswith("tenure_bridge")}
    assert ours == {"method", "outcome", "le", "cell"}


@pytest.mark.row("S5")
async def test_readiness_follows_the_store_and_liveness_nothing(bridge: Bridge, client: Client, fake: FakeTaskStore) -> None:
    async def look(path: str) -> Answer:
        return await client.send(b"", {}, verb="GET", url=f"http://127.0.0.1:{bridge.admin_port}{path}")

    assert (await look("/livez")).status == 200
    assert (await look("/readyz")).status == 200  # the store answered the first look
    fake.trouble = StoreError("the connection broke", code=grpc.StatusCode.UNAVAILABLE)
    async with asyncio.timeout(60):
        while (await look("/readyz")).status != 503:
            await asyncio.sleep(0.05)
    assert b"the store cannot be reached" in (await look("/readyz")).body
    assert (await look("/livez")).status == 200
