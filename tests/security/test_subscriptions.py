"""What a stream tells whom: what its listener may read, at the moment it is told. Security checklist A13, T4, T5, H26."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from mcp_bridge.app import Bridge
from mcp_bridge.config import Config
from tests.bridge.client import TASKS
from tests.bridge.listening import Stream, listening
from tests.conftest import Stubs, started
from tests.security.authority import Authority
from tests.security.conftest import Users
from tests.store.builders import cancel, claim, question, suspend

FORMS = {**TASKS, "elicitation": {}}
APPROVAL = b'{"mode":"form","message":"Pay?","requestedSchema":{"type":"object"},"_meta":{"dev.tenure/approval":true}}'


@pytest.fixture
async def bridge(config: Config, store: Stubs) -> AsyncIterator[Bridge]:
    """A bridge over the real store."""
    async with started(Bridge(replace(config, store=store.address))) as running:
        yield running


@pytest.fixture
async def users(bridge: Bridge, authority: Authority) -> AsyncIterator[Users]:
    """Everybody who calls."""
    async with aiohttp.ClientSession() as session:
        yield Users(session, bridge, authority)


async def create(users: Users, tool: str = "travel", subject: str = "ann", **claims: Any) -> str:
    return str((await users.user(subject, **claims).call(tool, tasks=True)).result["taskId"])


async def statuses(stream: Stream, count: int) -> list[str]:
    """The next snapshots, after the acknowledgement if that comes first."""
    found: list[str] = []
    while len(found) < count:
        frame = await stream.frame()
        if frame.get("method") == "notifications/tasks":
            found.append(frame["params"]["status"])
    return found


@pytest.mark.row("T4", "T5", "A17")
@pytest.mark.parametrize("groups", [[], ["auditors"], ["managers"]], ids=str)
async def test_an_id_that_is_not_the_listeners_is_agreed_to_and_silent_like_one_that_is_nobodys(
    users: Users, groups: list[str]
) -> None:
    foreign = [
        await create(users, "report", "eve"),
        await create(users, "report", "eve", tenant="beta"),
        str(uuid4()),
        "no id at all",
    ]
    for task_id in foreign:
        token = users.authority.token(sub="ann", groups=groups)
        async with listening(users.bridge.port, task_id, token=token) as stream:
            acknowledged, last = await stream.rest()
            assert acknowledged["params"]["notifications"] == {"taskIds": [task_id]}
            assert last["result"]["resultType"] == "complete"


@pytest.mark.row("T4", "H26")
async def test_each_listener_is_shown_the_questions_that_are_theirs(users: Users, store: Stubs) -> None:
    task_id, port = await create(users), users.bridge.port
    ann, max_ = users.authority.token(sub="ann"), users.authority.token(sub="max", groups=["managers"])
    async with (
        listening(port, task_id, token=ann, capabilities=FORMS) as owner,
        listening(port, task_id, token=max_, capabilities=FORMS) as manager,
    ):
        assert await statuses(owner, 1) == await statuses(manager, 1) == ["working"]
        (leased,) = (await store.leases.LeaseTasks(claim(tenant_ids=["acme"], workflow="travel", limit=1))).tasks
        await store.leases.SuspendTask(suspend(leased.lease, questions=[question("pay", APPROVAL)]))
        while (status := (await statuses(manager, 1))[0]) == "working":
            pass
        assert status == "input_required"
        await store.tasks.CancelTask(cancel(task_id, tenant_id="acme"))
        seen = [frame["params"]["status"] for frame in await owner.rest() if "params" in frame]
        assert "input_required" not in seen
        assert seen[-1] == "cancelled"


@pytest.mark.row("A13")
async def test_a_stream_ends_with_its_token(users: Users) -> None:
    token = users.authority.token(expires_in=2)
    async with listening(users.bridge.port, tools=True, token=token) as stream:
        _, last = await stream.rest()
        assert last["result"]["resultType"] == "complete"


@pytest.mark.row("A13", "T4")
async def test_a_snapshot_is_told_only_to_those_who_may_read_it_then(users: Users, config: Config, store: Stubs) -> None:
    task_id, port, file = await create(users), users.bridge.port, Path(config.routes)
    otto = users.authority.token(sub="otto", groups=["auditors"])
    async with (
        listening(port, task_id, token=users.authority.token()) as owner,
        listening(port, task_id, tools=True, token=otto) as auditor,
    ):
        assert await statuses(owner, 1) == await statuses(auditor, 1) == ["working"]
        file.write_text(file.read_text().replace("[auditors]", "[nobody]"))
        async with asyncio.timeout(30):
            while (await users.bearing(otto).task("get", task_id)).status != 400:  # until the change is seen
                await asyncio.sleep(0.05)
        await store.tasks.CancelTask(cancel(task_id, tenant_id="acme"))
        assert await statuses(owner, 1) == ["cancelled"]
        await users.bridge.stop()
        assert [frame.get("method") for frame in await auditor.rest()] == [None]  # the end, and nothing before it


async def test_a_changed_list_of_tools_is_told_to_those_whose_list_it_is(users: Users, config: Config) -> None:
    port, file = users.bridge.port, Path(config.routes)
    clerk, other = users.authority.token(sub="kim", scope="payroll", groups=["hr"]), users.authority.token()
    async with (
        listening(port, tools=True, token=clerk) as concerned,
        listening(port, tools=True, token=other) as unconcerned,
    ):
        for stream in (concerned, unconcerned):
            await stream.frame()  # the acknowledgement
        file.write_text(file.read_text().replace("name: payroll\n", "name: payroll\n        title: Payroll\n"))
        assert (await concerned.frame())["method"] == "notifications/tools/list_changed"
        await users.bridge.stop()
        assert [frame.get("method") for frame in await unconcerned.rest()] == [None]
