"""Sessions of earlier clients, where callers are asked who they are. Contract, section 10.5; security checklist A17, H24."""

import asyncio

import pytest

from tests.bridge.fake_store import FakeTaskStore
from tests.bridge.legacy import Legacy, cancelled
from tests.security.conftest import Users

WRITE = "reports:write"


async def test_a_session_is_nobody_elses_and_grants_nothing(users: Users) -> None:
    ann = Legacy(users.user("ann", scope=WRITE))
    await ann.initialize()
    assert (await ann.ask("ping")).status == 200
    for other in (users.user("eve", scope=WRITE), users.user("ann", scope=WRITE, tenant="beta")):
        assert (await Legacy(other).ask("ping", Mcp_Session_Id=ann.session)).status == 404
    assert (await Legacy(users.bearing(None)).ask("ping", Mcp_Session_Id=ann.session)).status == 401
    shown = {tool["name"] for tool in (await ann.ask("tools/list")).result["tools"]}
    assert shown == {"report", "travel"}


async def test_scopes_that_are_missing_are_asked_for_in_every_era(users: Users) -> None:
    answer = await Legacy(users.user(scope=WRITE)).call("publish")
    assert (answer.status, answer.code) == (403, 40300)
    assert 'scope="reports:write publish"' in answer.headers["WWW-Authenticate"]
    unknown = await Legacy(users.user(scope=WRITE)).call("payroll")
    assert (unknown.status, unknown.code) == (200, -32602)


@pytest.mark.parametrize(("scope", "ends"), [("reports:write", False), ("reports:admin", True)])
async def test_a_call_is_cancelled_by_who_may_cancel_its_work(
    users: Users, fake: FakeTaskStore, scope: str, ends: bool
) -> None:
    user = Legacy(users.user(scope=scope))
    await user.initialize()
    calling = asyncio.create_task(user.call("report"))
    await fake.watching.wait()
    (task_id,) = fake.tasks
    assert (await user.send(cancelled(1))).status == 202
    assert bool(fake.cancelled) == ends
    if not ends:
        await fake.complete(task_id, b'{"content":[]}')
    await calling
