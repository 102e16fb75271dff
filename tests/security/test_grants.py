"""Who may do what with tools and tasks. Contract, sections 7, 10.18, 10.19; security checklist A12, A13, A17, T4 to T6."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from taskstore.v1 import types_pb2

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.config_files import ConfigFileError
from mcp_bridge.access.grants import Action, Grant, Verdict, implied_by
from mcp_bridge.access.routes_file import load_routes
from tests.bridge.client import TASKS, Answer, Client
from tests.bridge.fake_store import FakeTaskStore
from tests.security.conftest import Users

ACTIONS = ["get", "update", "cancel"]
FORMS = {**TASKS, "elicitation": {"form": {}}}
APPROVE = (
    b'{"mode":"form","message":"Pay?","requestedSchema":{"type":"object","properties":{}},"_meta":{"dev.tenure/approval":true}}'
)
PLAIN = b'{"mode":"form","message":"Where to?","requestedSchema":{"type":"object","properties":{}}}'
YES = {"action": "accept", "content": {}}


async def tools_of(client: Client) -> list[str]:
    return [tool["name"] for tool in (await client.ask("tools/list")).result["tools"]]


async def create(client: Client, tool: str) -> str:
    return str((await client.call(tool, tasks=True)).result["taskId"])


async def update(client: Client, task_id: str, **answers: Any) -> Answer:
    params = {"taskId": task_id, "inputResponses": answers}
    return await client.ask("tasks/update", params, name=task_id, capabilities=FORMS)


async def read(client: Client, task_id: str) -> dict[str, Any]:
    return (await client.task("get", task_id, capabilities=FORMS)).result


def is_unknown(answer: Answer) -> bool:
    body = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "Task not found"}}
    return answer.status == 400 and answer.json == body and "WWW-Authenticate" not in answer.headers


@pytest.mark.must("K-05", "L-02", "L-15")
@pytest.mark.row("H23", "H24", "A12")
@pytest.mark.parametrize(
    ("claims", "tools"),
    [
        ({"scope": ""}, ["publish", "travel"]),
        ({"scope": "reports:read"}, ["publish", "travel"]),
        ({"scope": "reports:write"}, ["report", "publish", "travel"]),
        ({"scope": "reports:admin"}, ["report", "publish", "travel"]),
        ({"scope": ["reports:write"]}, ["report", "publish", "travel"]),
        ({"scope": "payroll", "groups": ["hr", "x"]}, ["publish", "payroll", "travel"]),
        ({"scope": "payroll", "groups": ["HR"]}, ["publish", "travel"]),
        ({"scope": "payroll", "groups": "x hr"}, ["publish", "payroll", "travel"]),
        ({"scope": "", "groups": ["hr"]}, ["publish", "travel"]),
        ({"sub": "eve"}, ["report", "publish", "private", "travel"]),
        ({"sub": "eve", "scope": ""}, ["publish", "private", "travel"]),
        ({"tenant": "beta", "scope": ""}, ["report"]),
    ],
    ids=str,
)
async def test_the_list_shows_what_may_be_called_and_what_scopes_may_be_asked_for(
    users: Users, claims: dict[str, Any], tools: list[str]
) -> None:
    client = users.bearing(users.authority.token(**claims))
    answer = await client.ask("tools/list")
    assert [tool["name"] for tool in answer.result["tools"]] == tools
    assert answer.result["cacheScope"] == "private"
    every = ("report", "publish", "payroll", "private", "nobodys", "travel")
    for tool in every:
        status = (await client.call(tool, tasks=True)).status
        assert (status in (200, 403)) == (tool in tools), tool


@pytest.mark.must("K-05", "L-15")
@pytest.mark.row("H24")
async def test_a_tool_that_is_not_granted_is_unknown_byte_for_byte(users: Users, fake: FakeTaskStore) -> None:
    unknown = await users.user(scope="").call("no_such", tasks=True)
    fields = {name: value for name, value in unknown.headers.items() if name != "Date"}
    assert (unknown.status, unknown.code) == (400, -32602)
    for tool in ("report", "payroll", "private", "nobodys"):
        answer = await users.user(scope="").call(tool, tasks=True)
        assert (answer.status, answer.body) == (unknown.status, unknown.body)
        assert {name: value for name, value in answer.headers.items() if name != "Date"} == fields
    assert not fake.created


@pytest.mark.row("A12")
def test_a_broader_scope_implies_narrower_ones_over_any_number_of_steps() -> None:
    found = implied_by({"a": ["b"], "b": ["c", "d"], "e": ["d"], "x": ["y"], "y": ["x"]})
    assert found["c"] == {"a", "b", "c"}
    assert found["d"] == {"a", "b", "d", "e"}
    assert found["x"] == found["y"] == {"x", "y"}
    assert "a" not in found


def test_scopes_are_all_needed_and_groups_and_principals_are_alternatives() -> None:
    grant = Grant(
        scopes=("s", "t"),
        groups=frozenset(("g",)),
        principals=frozenset({("i", "ann")}),
        implied_by=(frozenset("s"), frozenset(("t", "u"))),
    )

    def judged(subject: str, scopes: str, groups: str = "", issuer: str = "i") -> Verdict:
        held, member_of = frozenset(scopes.split()), frozenset(groups.split())
        return grant.judge(Caller(tenant="t", issuer=issuer, subject=subject, scopes=held, groups=member_of))

    assert judged("ann", "s t") is judged("ben", "s u", "g") is Verdict.GRANTED
    assert judged("ann", "s") is judged("ben", "", "g") is Verdict.LACKS_SCOPES
    assert judged("ben", "s t") is judged("ann", "s t", issuer="j") is Verdict.DENIED


@pytest.mark.must("T-40")
@pytest.mark.row("T4", "A17", "T6")
@pytest.mark.parametrize("action", ACTIONS)
async def test_a_task_of_another_user_or_tenant_is_unknown(users: Users, fake: FakeTaskStore, action: str) -> None:
    ann, scopes = users.user("ann", scope="reports:admin"), "reports:admin"
    task_id = await create(ann, "report")
    strangers = [
        users.user("ben", scope=scopes),
        users.user("ann", scope=scopes, tenant="beta"),
        users.user("ben", scope=scopes, tenant="beta"),
        users.user("ben", scope=scopes, groups=["managers", "auditors", "hr"]),
        users.user("ann", path="/t/beta/mcp", tenant="beta"),
    ]
    for stranger in strangers:
        assert is_unknown(await stranger.task(action, task_id))
    assert not fake.cancelled
    assert (await ann.task(action, task_id)).status == 200
    assert (await users.user("ann", path="/t/acme/mcp", scope=scopes).task(action, task_id)).status == 200


@pytest.mark.must("B-13", "T-40")
@pytest.mark.row("T4", "A13")
async def test_what_an_owner_may_do_with_a_task_is_asked_each_time(users: Users, fake: FakeTaskStore) -> None:
    task_id = await create(users.user(scope="reports:write"), "report")
    for scope, allowed in (
        ("reports:write", {"get", "update"}),
        ("reports:read", {"get"}),
        ("", set()),
        ("reports:admin", ACTIONS),
    ):
        for action in ACTIONS:
            answer = await users.user(scope=scope).task(action, task_id)
            assert (answer.status == 200) if action in allowed else is_unknown(answer), (scope, action)
    assert fake.cancelled == [task_id]


@pytest.mark.row("A4", "A11")
async def test_an_owner_of_a_task_of_an_advertised_tool_is_told_the_scopes(users: Users) -> None:
    task_id = await create(users.user(scope="reports:write publish"), "publish")
    for action in ACTIONS:
        answer = await users.user(scope="reports:write").task(action, task_id)
        assert (answer.status, answer.code) == (403, 40300)
        assert 'scope="reports:write publish"' in answer.headers["WWW-Authenticate"]
        assert is_unknown(await users.user("ben", scope="reports:write").task(action, task_id))


@pytest.mark.row("T4")
async def test_those_who_may_read_everybodys_tasks_may_only_read(users: Users, fake: FakeTaskStore) -> None:
    task_id = await create(users.user("ann"), "travel")
    report = await create(users.user("ann"), "report")
    auditor = users.user("otto", groups=["auditors"])
    await fake.ask(task_id, "where", PLAIN)
    assert (await read(auditor, task_id))["status"] == "working"
    for action in ("update", "cancel"):
        assert is_unknown(await auditor.task(action, task_id))
    assert is_unknown(await auditor.task("get", report))
    assert is_unknown(await users.user("otto", groups=["auditors"], tenant="beta").task("get", task_id))
    await fake.complete(task_id, b'{"content":[]}')
    assert (await read(auditor, task_id))["result"]["content"] == []


@pytest.mark.row("T4", "H26")
async def test_an_approval_is_its_roles_to_give_and_records_who_gave_it(users: Users, fake: FakeTaskStore) -> None:
    owner, manager = users.user("ann"), users.user("max", groups=["managers"])
    task_id = await create(owner, "travel")
    await fake.ask(task_id, "pay", APPROVE)
    assert (await read(owner, task_id))["status"] == "working"
    assert set((await update(owner, task_id, pay=YES)).result) == {"resultType", "_meta"}
    assert not fake.answered
    shown = await read(manager, task_id)
    assert (shown["status"], list(shown["inputRequests"])) == ("input_required", ["pay"])
    assert is_unknown(await update(users.user("mia"), task_id, pay=YES))
    assert (await update(manager, task_id, pay=YES)).status == 200
    (answered,) = fake.answered
    assert (answered.answered_by.subject, answered.owner.subject) == ("max", "ann")
    assert [answer.key for answer in answered.answers] == ["pay"]


@pytest.mark.row("T4")
async def test_questions_to_the_owner_are_nobody_elses(users: Users, fake: FakeTaskStore) -> None:
    owner, manager = users.user("ann"), users.user("max", groups=["managers"])
    task_id = await create(owner, "travel")
    await fake.ask(task_id, "pay", APPROVE)
    await fake.ask(task_id, "where", PLAIN)
    assert list((await read(owner, task_id))["inputRequests"]) == ["where"]
    assert list((await read(manager, task_id))["inputRequests"]) == ["pay"]
    await update(manager, task_id, pay=YES, where=YES)
    await update(owner, task_id, pay=YES, where=YES)
    assert [[answer.key for answer in one.answers] for one in fake.answered] == [["pay"], ["where"]]
    assert is_unknown(await manager.task("cancel", task_id))


async def test_an_approval_cannot_be_given_in_advance(users: Users, fake: FakeTaskStore) -> None:
    params = {"name": "travel", "arguments": {}, "inputResponses": {"pay": YES}}
    await users.user("ann").ask("tools/call", params, name="travel", capabilities=FORMS)
    assert not fake.created[-1].early_answers
    await users.user("ann").ask("tools/call", {**params, "name": "report"}, name="report", capabilities=FORMS)
    assert [answer.key for answer in fake.created[-1].early_answers] == ["pay"]


async def test_a_held_call_waits_past_questions_that_are_not_its_callers(users: Users, fake: FakeTaskStore) -> None:
    calling = asyncio.create_task(users.user("ann").call("travel", capabilities={"elicitation": {}}))
    async with asyncio.timeout(60):
        await fake.watching.wait()
    (task_id,) = fake.tasks
    await fake.ask(task_id, "pay", APPROVE)
    await fake.ask(task_id, "where", PLAIN)
    async with asyncio.timeout(60):
        result = (await calling).result
    assert (result["resultType"], list(result["inputRequests"])) == ("input_required", ["where"])


@pytest.mark.parametrize(
    ("tool", "owner_sees"),
    [("report", ["pay"]), ("travel", [])],
)
async def test_where_no_role_is_named_an_approval_is_the_owners(
    users: Users, fake: FakeTaskStore, tool: str, owner_sees: list[str]
) -> None:
    owner = users.user("ann")
    task_id = await create(owner, tool)
    await fake.ask(task_id, "pay", APPROVE)
    assert list((await read(owner, task_id)).get("inputRequests", {})) == owner_sees


async def test_only_a_form_can_be_an_approval(users: Users, fake: FakeTaskStore) -> None:
    owner = users.user("ann")
    for params in (
        APPROVE.replace(b":true}", b":1}"),
        json.dumps({"mode": "url", "message": "m", "url": "https://x", "_meta": {"dev.tenure/approval": True}}).encode(),
        b'{"mode":"form","message":"dev.tenure/approval","requestedSchema":{"type":"object","properties":{}}}',
        b'{"mode":"form","message":"m","requestedSchema":{"type":"object","properties":{}},"_meta":["dev.tenure/approval"]}',
    ):
        task_id = await create(owner, "travel")
        await fake.ask(task_id, "k", params)
        capabilities = {**TASKS, "elicitation": {"form": {}, "url": {}}}
        shown = (await owner.task("get", task_id, capabilities=capabilities)).result
        assert list(shown["inputRequests"]) == ["k"]


@pytest.mark.row("T4")
async def test_a_task_whose_tool_is_gone_stays_its_owners(users: Users, fake: FakeTaskStore) -> None:
    task_id = await create(users.user("ann"), "report")
    fake.tasks[task_id].contract.tool = "gone"
    for action in ACTIONS:
        assert is_unknown(await users.user("ben", scope="reports:admin").task(action, task_id))
        assert (await users.user("ann", scope="").task(action, task_id)).status == 200


HEAD = "version: 1\ntenants:\n  acme:\n    tools:\n      - {name: t, workflow: w, task: never, input_schema: {type: object}"


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (", grants: {call: everyone}", "grants.call: must be `anyone`, or"),
        (", grants: {call: {}}", "grants.call: must have scopes, groups or principals"),
        (", grants: {call: {scopes: []}}", "grants.call.scopes: must be a list of 1 to 50"),
        (", grants: {call: {scopes: [a, a]}}", "grants.call.scopes: must be a list of 1 to 50 different"),
        (", grants: {call: {scopes: [a b]}}", r"grants.call.scopes\[0\]: must be a scope"),
        (", grants: {call: {scopes: [offline_access]}}", r"grants.call.scopes\[0\]: must be a scope"),
        (", grants: {call: {users: [a]}}", "grants.call.users: is not a key that is known here"),
        (", grants: {call: {principals: [ann]}}", r"principals\[0\]: must be a mapping with `issuer` and `subject`"),
        (", grants: {list: anyone}", "grants.list: is not a key that is known here"),
        (", advertise: true", "advertise: works only with"),
        (", advertise: true, grants: {call: {groups: [a]}}", "advertise: works only with"),
    ],
)
def test_a_slip_in_the_grants_is_told(tmp_path: Path, more: str, fault: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(HEAD + more + "}\n")
    with pytest.raises(ConfigFileError, match=fault):
        load_routes(str(file))


def test_what_a_tool_does_not_say_its_tenant_says_and_then_the_grant_to_call(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    said = "    grants: {call: {scopes: [c]}, cancel: {scopes: [x]}}\n"
    file.write_text(
        HEAD.replace("    tools", said + "    tools") + ", grants: {call: {scopes: [d]}, read_any: {groups: [g]}}}\n"
    )
    routes = load_routes(str(file))
    grants = routes.tenants["acme"]["t"].grants
    scopes = {
        name: getattr(grants, name) and getattr(grants, name).scopes for name in ("call", "read", "answer", "cancel", "approve")
    }
    assert scopes == {"call": ("d",), "read": ("d",), "answer": ("d",), "cancel": ("x",), "approve": None}
    assert routes.grants["acme"].read == routes.grants["acme"].call


def test_what_no_grant_says_is_denied(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(HEAD + "}\n")
    routes, ann = load_routes(str(file)), Caller(tenant="acme", issuer="i", subject="ann")
    assert routes.granted(ann) == ()
    task = types_pb2.Task(tenant_id="acme", contract=types_pb2.TaskContract(tool="t", owner=ann.owner))
    assert not any(routes.may(ann, action, task) for action in Action)


@pytest.mark.row("A13", "H25")
async def test_each_round_of_a_held_call_is_granted_afresh(users: Users, fake: FakeTaskStore) -> None:
    capabilities: dict[str, Any] = {"elicitation": {}}
    calling = asyncio.create_task(users.user("ann").call("report", capabilities=capabilities))
    async with asyncio.timeout(60):
        await fake.watching.wait()
    await fake.ask(next(iter(fake.tasks)), "where", PLAIN)
    state = (await calling).result["requestState"]
    params = {"name": "report", "arguments": {}, "requestState": state, "inputResponses": {"where": YES}}

    async def next_round(client: Client) -> Answer:
        return await client.ask("tools/call", params, name="report", capabilities=capabilities)

    lost = await next_round(users.user("ann", scope="reports:read"))
    unknown = await users.user("ann", scope="").call("no_such")
    assert (lost.status, lost.body) == (400, unknown.body)
    for stranger in (users.user("ben"), users.user("ann", tenant="beta")):
        refused = await next_round(stranger)
        assert (refused.status, refused.code) == (400, -32602)
        assert "requestState" in refused.json["error"]["message"]
    assert not fake.answered
    await fake.complete(next(iter(fake.tasks)), b'{"content":[]}')
    assert (await next_round(users.user("ann"))).result["content"] == []
