"""The README names every setting and every key, with its default."""

import json
import re
import textwrap
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import mcp_bridge
from mcp_bridge.access.issuers import issuers_schema, load_issuers
from mcp_bridge.access.limits import CALLER, TENANT
from mcp_bridge.access.routes_file import load_routes, routes_schema
from mcp_bridge.config import Config
from mcp_bridge.wire.mcp import IDEMPOTENCY_KEY, PREFLIGHT
from mcp_bridge.wire.questions import APPROVAL

README = (Path(mcp_bridge.__file__).parent / "README.md").read_text()


def rows(heading: str) -> dict[str, str]:
    """The first column of a section's table to its last."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {name: row[-1].strip("| `") for row in cells for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_setting_is_told_with_its_default() -> None:
    defaults: dict[str, Any] = {
        ("TENURE_" if field.name.startswith("log_") else "TENURE_BRIDGE_") + field.name.upper(): field.default
        for field in fields(Config)
    }
    shown = {
        name: "required"
        if value is MISSING
        else "none"
        if value in ((), "")
        else f"{value:g}"
        if isinstance(value, float)
        else value
        for name, value in defaults.items()
    }
    assert rows("Settings") == {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in shown.items()
    }


def test_every_key_of_a_route_is_told_with_its_default() -> None:
    told = rows("Routes")
    keys = routes_schema()["$defs"]["tool"]["properties"]
    assert set(told) == set(keys)
    for name, key in keys.items():
        assert "default" not in key or told[name] == str(key["default"]), name


def test_known_clients_are_told_with_the_versions_that_the_tests_drive() -> None:
    root = Path(mcp_bridge.__file__).parents[1]
    pins = dict(one.split("==") for one in tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]["clients"])
    pins |= json.loads((root / "tests" / "node_tools" / "package.json").read_text())["dependencies"]
    told = re.findall(r"^\| `([^` ]+)[^|]*\| ([0-9.]+) \|", README.split("\n## Clients\n")[1], re.MULTILINE)
    assert len(told) == 5
    assert {name: pins[name] for name, _ in told} == dict(told)


@pytest.mark.must("B-21")
def test_the_dialect_of_schemas_is_told() -> None:
    assert "`input_schema` | what it takes: JSON Schema 2020-12," in README


def test_the_key_for_idempotent_calls_is_told() -> None:
    assert f"`{IDEMPOTENCY_KEY}`" in README


def test_the_member_that_has_the_answers_to_preflight_questions_is_told(tmp_path: Path) -> None:
    assert f"`{PREFLIGHT}`" in README
    example = textwrap.indent(README.split("## Rounds")[1].split("```yaml\n")[1].split("```")[0], "        ")
    path = tmp_path / "routes.yaml"
    tool = "      - name: t\n        workflow: w\n        task: never\n        input_schema: {type: object}\n"
    path.write_text(f"version: 1\ntenants:\n  dev:\n    tools:\n{tool}{example}")
    (question,) = load_routes(str(path)).tenants["dev"]["t"].preflight
    assert question.key == "user_name"


def test_every_key_of_an_issuer_is_told_with_its_default() -> None:
    told = rows("Authorization")
    keys = issuers_schema()["$defs"]["issuer"]["properties"]
    assert set(told) >= set(keys)
    for name, key in keys.items():
        if isinstance(key.get("default"), str):
            assert told[name] == key["default"], name
    assert set(routes_schema()["$defs"]["grants"]["properties"]) <= set(told)
    assert f"`{APPROVAL}`" in README


def test_the_limits_are_told() -> None:
    section = README.split("\n### Limits\n")[1].split("\n### ")[0]
    told = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    for name, caller, tenant in told:
        key = name.split("`")[1]
        shown = [int(text.replace(",", "").removesuffix(" MiB")) * (2**20 if "MiB" in text else 1) for text in (caller, tenant)]
        assert shown == [getattr(CALLER, key), getattr(TENANT, key)]
    assert {name.split("`")[1] for name, _, _ in told} == set(routes_schema()["$defs"]["limits"]["properties"])


def test_the_examples_of_issuers_and_grants_are_right(tmp_path: Path) -> None:
    issuers, grants = (part.split("```")[0] for part in README.split("## Authorization")[1].split("```yaml\n")[1:3])
    files = tmp_path / "issuers.yaml", tmp_path / "routes.yaml"
    files[0].write_text(issuers)
    files[1].write_text(grants.replace("# ...", "workflow: w\n        task: never\n        input_schema: {type: object}"))
    assert load_issuers(str(files[0]), on_loopback=False).scopes == ("mcp",)
    assert load_routes(str(files[1])).tenants["acme"]["report"].grants.approve is not None
