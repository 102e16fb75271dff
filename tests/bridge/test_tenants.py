"""Tenants of one route file: each has its own tools, under names that others may have too. Contract, section 7; A16."""

from pathlib import Path
from uuid import uuid4

import pytest
from taskstore.v1 import types_pb2

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.grants import Action
from mcp_bridge.access.places import Place, place_at
from mcp_bridge.access.routes import Routes
from mcp_bridge.access.routes_file import load_routes

ROUTES = """
version: 1
tenants:
  acme:
    tools:
      - {name: report, workflow: report, workflow_version: 1, task: never, input_schema: {type: object}}
  beta:
    tools:
      - {name: report, workflow: report, workflow_version: 2, task: required, input_schema: {type: object}}
      - {name: extra, workflow: extra, task: never, input_schema: {type: object}}
"""


@pytest.fixture
def routes(tmp_path: Path) -> Routes:
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES)
    return load_routes(str(path))


def caller(tenant: str, subject: str = "ann") -> Caller:
    return Caller(tenant=tenant, issuer="https://as.example", subject=subject, is_development=True)


@pytest.mark.row("A16")
def test_one_name_means_another_version_for_another_tenant(routes: Routes) -> None:
    found = {tenant: routes.find(caller(tenant), "report") for tenant in ("acme", "beta", "nobody")}
    assert [route and route.workflow_version for route in found.values()] == [1, 2, None]
    assert [route.tool for route in routes.granted(caller("acme"))] == ["report"]
    assert routes.find(caller("acme"), "extra") is None


@pytest.mark.row("T4")
@pytest.mark.parametrize("action", Action)
def test_a_task_is_its_owners_within_its_tenant(routes: Routes, action: Action) -> None:
    ann = caller("acme")
    task = types_pb2.Task(
        tenant_id="acme", task_id=str(uuid4()), contract=types_pb2.TaskContract(tool="report", owner=ann.owner)
    )
    assert routes.may(ann, action, task)
    assert not routes.may(caller("acme", "ben"), action, task)
    assert not routes.may(caller("beta"), action, task)


def test_a_token_ends_at_its_end() -> None:
    timed = Caller(tenant="t", issuer="i", subject="s", expires_at=100.0)
    assert [timed.is_expired(now) for now in (99.9, 100.0)] == [False, True]
    assert not caller("t").is_expired(10**12)


def test_a_place_is_written_one_way_only() -> None:
    assert place_at("/mcp") == Place()
    assert place_at("/t/acme/mcp") == Place("acme")
    for path in ("/mcp", "/t/a.b-c_d/mcp"):
        place = place_at(path)
        assert place is not None
        assert place.path == path
    assert not [path for path in ("/mcp\n", "/t/a/mcp?x", "/t/a b/mcp", "/T/a/mcp", "//mcp") if place_at(path)]
