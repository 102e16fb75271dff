"""The fixtures fit together: each route has its workflow, and the suite finds what it calls."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.fixtures.worker import TENANT, VERSION, WORKFLOWS

ROUTES = Path(__file__).parent / "fixtures" / "routes.yaml"


@pytest.fixture
def tools() -> list[dict[str, Any]]:
    routes: Any = yaml.safe_load(ROUTES.read_text())
    found: list[dict[str, Any]] = routes["tenants"][TENANT]["tools"]
    return found


def test_every_route_has_a_workflow_and_every_workflow_a_route(
    tools: list[dict[str, Any]],
) -> None:
    routed = {(tool["workflow"], tool["workflow_version"]) for tool in tools}
    assert routed == {(workflow, VERSION) for workflow in WORKFLOWS}
    assert [tool["name"] for tool in tools] == [tool["workflow"] for tool in tools]


def test_the_first_tool_answers_a_plain_call_without_arguments(
    tools: list[dict[str, Any]],
) -> None:
    first = tools[0]
    assert first["task"] != "required"
    assert not first.get("requires")
    assert not first["input_schema"].get("required")


def test_no_tool_that_may_become_a_task_promises_structured_content(
    tools: list[dict[str, Any]],
) -> None:
    assert not [tool["name"] for tool in tools if tool["task"] != "never" and "output_schema" in tool]
