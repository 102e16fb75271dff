"""An approver's inbox, from the worker's question to its answer. Contract, section 10.19; security checklist T4, S7."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import asyncpg
import pytest
from taskstore.v1 import types_pb2

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from store_service.client import Context, ToolError, Worker
from tests.bridge.client import TASKS, Answer, Client
from tests.conftest import Stubs, snapshots
from tests.security.authority import ISSUER, Authority
from tests.security.conftest import Users

FORMS = {**TASKS, "elicitation": {}}
SCHEMA = {"type": "object", "properties": {"most": {"type": "integer"}}, "required": ["most"]}


@pytest.fixture
async def bridge(config: Config, store: Stubs) -> AsyncIterator[Bridge]:
    """A bridge over the real store, and a worker that asks for approval."""
    running, worker = Bridge(replace(config, store=store.address)), Worker(store.address, tenants=["acme"])

    @worker.workflow("travel", version=1)
    async def travel(ctx: Context, args: dict[str, Any]) -> str:
        answer = await ctx.ask("budget", f"May {args['who']} travel?", SCHEMA, approval=True)
        if not answer.accepted:
            raise ToolError("not approved")
        return f"{args['who']} may spend {answer.content['most']}"

    await running.start()
    async with worker:
        yield running
    await running.stop()


@pytest.fixture
async def users(bridge: Bridge, authority: Authority) -> AsyncIterator[Users]:
    """Everybody who calls."""
    async with aiohttp.ClientSession() as session:
        yield Users(session, bridge, authority)


async def ask(client: Client, task_id: str, **answers: Any) -> Answer:
    params = {"taskId": task_id, "inputResponses": answers}
    return await client.ask("tasks/update", params, name=task_id, capabilities=FORMS)


async def until(store: Stubs, task_id: str, state: types_pb2.TaskState.ValueType) -> None:
    """Waits until the task is in a state."""
    async with asyncio.timeout(30):
        async for task in snapshots(store, "acme", task_id):
            if task.state == state:
                return


async def read(client: Client, task_id: str) -> dict[str, Any]:
    return (await client.task("get", task_id, capabilities=FORMS)).result


@pytest.mark.row("T4", "S7")
async def test_a_manager_approves_what_the_owners_client_never_sees(
    users: Users, database: asyncpg.Connection, store: Stubs
) -> None:
    owner, manager = users.user("ann"), users.user("max", groups=["managers"])
    task_id = (await owner.call("travel", {"who": "Ann"}, tasks=True)).result["taskId"]  # declares no forms
    await until(store, task_id, types_pb2.TASK_STATE_WAITING)
    shown = await read(manager, task_id)
    assert shown["status"] == "input_required"
    assert shown["inputRequests"]["budget"]["params"]["message"] == "May Ann travel?"
    assert (await owner.task("get", task_id)).result["status"] == "working"
    yes = {"action": "accept", "content": {"most": 500}}
    assert (await ask(owner, task_id, budget=yes)).status == 200
    refused = await ask(manager, task_id, budget={"action": "accept", "content": {}})
    assert "inputResponses.budget.content" in refused.json["error"]["message"]
    assert (await read(manager, task_id))["status"] == "input_required"
    assert (await ask(manager, task_id, budget=yes)).status == 200
    await until(store, task_id, types_pb2.TASK_STATE_COMPLETED)
    assert (await read(owner, task_id))["result"]["content"][0]["text"] == "Ann may spend 500"
    row = await database.fetchrow("SELECT by_issuer, by_subject FROM tenure.input_request")
    assert tuple(row) == (ISSUER, "max")
