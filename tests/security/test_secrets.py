"""Tokens are looked at and forgotten; who did what is written down. Security checklist A8, A14, S1, S7."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import pytest
from structlog.testing import capture_logs

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from store_service.client import TaskStore
from tests.bridge.client import Client, client_of
from tests.bridge.fake_store import FakeTaskStore
from tests.conftest import started
from tests.security.authority import STATE_KEY, Authority
from tests.security.conftest import Users


async def use(client: Client) -> str:
    """Does everything that can be done with one task. Returns its id."""
    task_id = str((await client.call("travel", {"to": "Rome"}, tasks=True)).result["taskId"])
    for action in ("get", "update", "cancel"):
        assert (await client.task(action, task_id)).status == 200
    return task_id


async def metrics_of(bridge: Bridge) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{bridge.admin_port}/metrics") as response:
        return await response.text()


@pytest.mark.row("A8", "A14", "S1")
async def test_no_token_and_no_key_is_logged_counted_kept_or_shown(users: Users, fake: FakeTaskStore) -> None:
    good, expired, forged = users.user(), users.user(expires_in=-1), users.bearing(users.authority.token() + "A")
    with capture_logs() as lines:
        await use(good)
        fake.trouble = RuntimeError("boom")  # a fault of ours is logged whole
        await good.call("travel", tasks=True)
        fake.trouble = None
        for client in (expired, forged):
            assert (await client.ask("tools/list")).status == 401
    written = repr(lines) + await metrics_of(users.bridge) + repr(fake.created) + repr(fake.read) + repr(fake.tasks)
    for client in (good, expired, forged):
        assert client.token is not None
        for part in client.token.split("."):
            assert part not in written
    assert STATE_KEY not in written + repr(users.bridge._config)


@pytest.mark.row("S7")
async def test_each_call_that_may_change_something_is_audited_by_its_credential(users: Users) -> None:
    with capture_logs() as lines:
        task_id = await use(users.user("ann", jti="one"))
        await users.user("ann").ask("tools/list")
        await users.user("ben", jti="two").task("cancel", task_id)
        await users.user("ben", scope="").call("report", tasks=True)
    told = [line for line in lines if line["event"] == "audit"]
    assert [(one["action"], one["subject"], one["task_id"], one["outcome"]) for one in told] == [
        ("tools/call", "ann", task_id, "OK"),
        ("tasks/update", "ann", task_id, "OK"),
        ("tasks/cancel", "ann", task_id, "OK"),
        ("tasks/cancel", "ben", task_id, "-32602"),
        ("tools/call", "ben", None, "-32602"),
    ]
    assert {(one["tenant"], one["issuer"]) for one in told} == {("acme", users.authority.issuer)}
    assert told[0]["tool"] == "travel"
    ids = [one["token_id"] for one in told]
    assert len(ids[0]) == 16
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert "Rome" not in repr(lines)


@pytest.mark.row("S1")
async def test_no_figure_names_a_tenant_a_caller_a_tool_or_a_task(users: Users) -> None:
    task_id = await use(users.user("ann"))
    await users.user("ann", expires_in=-1).ask("tools/list")
    await users.bearing(None).ask("tools/list")
    figures = await metrics_of(users.bridge)
    for name in (task_id, "acme", "ann", "travel", "as.example"):
        assert name not in figures
    assert 'tenure_bridge_authentications_total{outcome="expired"} 1.0' in figures
    assert 'tenure_bridge_authentications_total{outcome="missing"} 1.0' in figures
    assert 'tenure_bridge_authentications_total{outcome="ok"} 4.0' in figures


class Wire(grpc.aio.ServerInterceptor):
    """Sees whatever comes to the store, and answers nothing."""

    def __init__(self) -> None:
        self.seen = ""
        self.called = asyncio.Event()

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        self.seen += repr(handler_call_details)
        if handler_call_details.method.startswith("/grpc.health."):
            return await continuation(handler_call_details)  # which it does not have, and so counts as well

        async def refuse(request: bytes, context: Any) -> bytes:
            self.seen += request.decode("latin-1") + repr(context.invocation_metadata())
            self.called.set()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not here")
            return b""

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.fixture
async def wire() -> AsyncIterator[tuple[Wire, int]]:
    seen = Wire()
    server = grpc.aio.server(interceptors=[seen])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield seen, port
    await server.stop(None)


@pytest.mark.row("A8")
async def test_nothing_of_a_token_reaches_the_store_but_whom_it_stands_for(
    config: Config, authority: Authority, wire: tuple[Wire, int]
) -> None:
    seen, port = wire
    running = Bridge(
        dataclasses.replace(config, store=f"127.0.0.1:{port}"), connect=lambda at: TaskStore.connect(at, retry_seconds=0.1)
    )
    async with started(running), client_of(running) as client:
        client.token = authority.token(sub="canary-subject", scope="canary-scope", groups=["canary-group"], jti="canary-id")
        assert (await client.call("travel", tasks=True)).status == 503
    async with asyncio.timeout(60):
        await seen.called.wait()
    assert "canary-subject" in seen.seen
    for part in (*client.token.split("."), "canary-scope", "canary-group", "canary-id", "Bearer", "uthorization"):
        assert part not in seen.seen
