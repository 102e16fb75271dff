"""The route file. Contract, sections 4 and 10.21."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from mcp_bridge.access.callers import Caller
from mcp_bridge.access.config_files import ConfigFileError
from mcp_bridge.access.routes import Route, Routes, TaskMode
from mcp_bridge.access.routes_file import load_routes, routes_schema
from tests.bridge.conftest import ROUTES

HEAD = "version: 1\ntenants:\n  dev:\n    tools:\n"
GOOD = {"name": "t", "workflow": "w", "task": "never", "input_schema": {"type": "object"}}


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    return str(path)


def faults(tmp_path: Path, text: str) -> list[str]:
    path = write(tmp_path, text)
    with pytest.raises(ConfigFileError) as caught:
        load_routes(path)
    return [line.removeprefix(path + ":") for line in str(caught.value).splitlines()]


def tool(**changes: Any) -> str:
    """A file with one tool, on line 5, good but for the changes."""
    return HEAD + "      - " + json.dumps({**GOOD, **changes}) + "\n"


def routes_of(tmp_path: Path, text: str) -> dict[str, Route]:
    return dict(load_routes(write(tmp_path, text)).tenants["dev"])


def test_a_route_has_what_the_file_says(tmp_path: Path) -> None:
    route = routes_of(tmp_path, ROUTES)["strict"]
    assert route.workflow_version == 3
    assert route.task is TaskMode.OPTIONAL
    assert route.priority == 7
    assert route.execution_deadline_ms == 600_000
    assert route.arguments.mirrored == {"Region": ("region",), "Most": ("limits", "most"), "Dry": ("dry",)}
    assert json.loads(route.output_schema) == {"type": "object"}
    shown = json.loads(route.description)
    assert list(shown) == ["name", "title", "description", "inputSchema", "outputSchema", "annotations"]


def test_icons_are_shown_as_mcp_has_them(tmp_path: Path) -> None:
    icons = [
        {"src": "https://x.example/i.png", "mimeType": "image/png", "sizes": ["48x48", "any"], "theme": "dark"},
        {"src": "data:image/svg+xml;base64,AAAA"},
    ]
    route = routes_of(tmp_path, tool(icons=icons))["t"]
    assert json.loads(route.description)["icons"] == json.loads(route.legacy_description)["icons"] == icons


def test_a_route_has_defaults_for_what_the_file_does_not_say(tmp_path: Path) -> None:
    route = routes_of(tmp_path, tool())["t"]
    assert (route.workflow_version, route.priority, route.output_schema, route.requires) == (1, 0, b"", ())
    assert (route.ttl_ms, route.poll_interval_ms, route.inline_wait_ms) == (3_600_000, 1_000, 0)
    assert (route.call_timeout_ms, route.disconnect_grace_ms, route.execution_deadline_ms) == (60_000, 10_000, 0)
    assert not route.continues_on_disconnect


def test_questions_before_the_work_are_kept_in_order(tmp_path: Path) -> None:
    form = {"message": "?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    sampling = {"messages": [], "maxTokens": 5, "metadata": {"share": 0.5, "none": None}}
    asked: list[dict[str, Any]] = [
        {"key": "who", "method": "elicitation/create", "params": form},
        {"key": "page", "method": "elicitation/create", "params": {"mode": "url", "message": "?", "url": "https://x.example"}},
        {"key": "model", "method": "sampling/createMessage", "params": sampling},
        {"key": "roots", "method": "roots/list"},
    ]
    route = routes_of(tmp_path, tool(preflight=asked, answer_within="5m", max_detaches=0))["t"]
    assert [(one.key, one.method, one.params) for one in route.preflight] == [
        (one["key"], one["method"], one.get("params", {})) for one in asked
    ]
    assert (route.answer_within_ms, route.max_detaches) == (300_000, 0)


@pytest.mark.must("R-04")
@pytest.mark.parametrize(
    ("question", "place"),
    [
        ({"key": "a#b", "method": "roots/list"}, "preflight[0].key: "),
        ({"key": " ", "method": "roots/list"}, "preflight[0].key: "),
        ({"key": "é" * 65, "method": "roots/list"}, "preflight[0].key: "),
        ({"method": "roots/list"}, "preflight[0].key: is missing"),
        ({"key": "a", "method": "tools/call"}, "preflight[0].method: "),
        ({"key": "a", "method": "roots/list", "parms": {}}, "preflight[0].parms: is not a key"),
        ({"key": "a", "method": "elicitation/create"}, "preflight[0].params: "),
        ({"key": "a", "method": "elicitation/create", "params": {"mode": "url", "message": "?"}}, "preflight[0].params: "),
        ({"key": "a", "method": "sampling/createMessage", "params": {"maxTokens": 1}}, "preflight[0].params: "),
        (
            {
                "key": "a",
                "method": "elicitation/create",
                "params": {
                    "message": "?",
                    "requestedSchema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}},
                },
            },
            "preflight[0].params.requestedSchema",
        ),
        ({"key": "a", "method": "roots/list", "params": {"x": "y" * 70_000}}, "preflight[0].params: must be at most"),
    ],
)
def test_a_question_before_the_work_must_be_one(tmp_path: Path, question: Any, place: str) -> None:
    told = faults(tmp_path, tool(preflight=[question]))
    assert any(f"tools[0].{place}" in line for line in told), told


@pytest.mark.must("R-03")
def test_keys_of_questions_before_the_work_are_different(tmp_path: Path) -> None:
    question = {"key": "a", "method": "roots/list"}
    assert faults(tmp_path, tool(preflight=[question, question])) == ["5: tools[0].preflight[1].key: the key a is there twice"]
    assert faults(tmp_path, tool(preflight=[])) == ["5: tools[0].preflight: must be a list of 1 to 16 questions"]


def test_an_input_schema_is_shown_as_it_was_written(tmp_path: Path) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object"}},
        "properties": {"address": {"$ref": "#addressDef"}, "x-mcp-header": {"const": {"x-mcp-header": ""}}},
        "allOf": [{"anyOf": [{"required": ["phone"]}]}],
        "if": {"required": ["a"]},
        "additionalProperties": False,
    }
    route = routes_of(tmp_path, tool(input_schema=schema))["t"]
    assert json.dumps(json.loads(route.description)["inputSchema"]) == json.dumps(schema)


def test_yaml_is_read_as_json_would_be(tmp_path: Path) -> None:
    text = (
        HEAD
        + "      - {name: t, workflow: yes, task: never, input_schema: "
        + "{type: object, enum: [on, 2026-11-29, 1, 0.5, true, ~, '1']}}\n"
    )
    shown = json.loads(routes_of(tmp_path, text)["t"].description)
    assert shown["inputSchema"]["enum"] == ["on", "2026-11-29", 1, 0.5, True, None, "1"]


@pytest.mark.row("H24")
@pytest.mark.must("B-20", "B-22", "B-23", "B-24", "B-26", "L-06", "L-07")
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": "a b"}, "name: must be 1 to 64 of"),
        ({"name": "x" * 65}, "name: must be 1 to 64 of"),
        ({"name": ""}, "name: must be 1 to 64 of"),
        ({"workflow": ""}, "workflow: must be the name of a workflow"),
        ({"icons": [{}]}, "icons[0].src: is missing"),
        ({"icons": [{"src": "http://x.example/i.png"}]}, "icons[0].src: must be an https URL"),
        ({"icons": [{"src": "data:text/html,x"}]}, "icons[0].src: must be an https URL"),
        ({"icons": [{"src": "https://x.example/a b"}]}, "icons[0].src: must be an https URL"),
        ({"icons": [{"src": "https://x.example/i", "theme": "red"}]}, "icons[0].theme: must be light or dark"),
        ({"icons": [{"src": "https://x.example/i", "sizes": ["48"]}]}, "icons[0].sizes[0]: must be like 48x48"),
        ({"icons": [{"src": "https://x.example/i", "url": "x"}]}, "icons[0].url: is not a key"),
        ({"icons": [{"src": "https://x.example/i"}] * 17}, "icons: must be a list of at most 16"),
        ({"workflow_version": 0}, "workflow_version: must be a whole number from 1"),
        ({"task": "sometimes"}, "task: must be required, optional or never"),
        ({"ttl": "1 hour"}, "ttl: must be a duration such as"),
        ({"ttl": 3600}, "ttl: must be a duration such as"),
        ({"ttl": "0s"}, "ttl: must be 1s to 3650d"),
        ({"poll_interval": "2h"}, "poll_interval: must be 10ms to 1h"),
        ({"longest_poll_interval": "1ms"}, "longest_poll_interval: must be 10ms to 1h"),
        ({"poll_interval": "2s", "longest_poll_interval": "1s"}, "longest_poll_interval: must not be less than poll_interval"),
        ({"inline_wait": "2001ms", "task": "optional"}, "inline_wait: must be 0s to 2s"),
        ({"inline_wait": "1s"}, "inline_wait: works only with `task: optional`"),
        ({"call_timeout": "0s"}, "call_timeout: must be 1ms to 1d"),
        ({"on_disconnect": "stop"}, "on_disconnect: must be cancel or continue"),
        ({"requires": ["telepathy"]}, "requires[0]: must be sampling, elicitation or roots"),
        ({"annotations": {"readOnly": True}}, "annotations.readOnly: is not a key that is known here"),
        ({"inline_wai": "1s"}, "inline_wai: is not a key that is known here"),
        ({"input_schema": []}, "input_schema: must be a JSON Schema, as a mapping"),
        ({"input_schema": {}}, "input_schema.type: the root must have `type: object`"),
        ({"input_schema": {"type": "object", "required": "a"}}, "input_schema.required: is not a valid JSON Schema"),
        (
            {"input_schema": {"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"}},
            "input_schema.$schema: must be https",
        ),
        (
            {"input_schema": {"type": "object", "$ref": "http://evil.example/s.json"}},
            "input_schema.$ref: must not refer to another",
        ),
        ({"input_schema": {"type": "object", "$ref": "other.json"}}, "input_schema: is not a valid JSON Schema"),
        ({"input_schema": {"type": "object", "$ref": "#/$defs/a"}}, "input_schema: is not a valid JSON Schema"),
        ({"input_schema": {"type": "object", "pattern": "(?=a)"}}, "input_schema.pattern: is not a valid JSON Schema"),
        ({"input_schema": {"type": "object", "x-mcp-header": "A"}}, "input_schema.x-mcp-header: must stand on a property"),
        ({"output_schema": {"type": "objekt"}}, "output_schema.type: is not a valid JSON Schema"),
        ({"output_schema": {"$ref": "file:///etc/passwd"}}, "output_schema.$ref: must not refer to another document"),
        ({"input_schema": {"type": "object", "title": "x" * 300_000}}, "input_schema: must be at most 262144 bytes"),
    ],
)
def test_a_fault_is_told_with_its_line_and_reason(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    found = faults(tmp_path, tool(**changes))
    assert any(line.startswith(f"5: tools[0].{fault}") for line in found), found


@pytest.mark.must("H-23", "H-24", "H-25", "H-26")
@pytest.mark.parametrize(
    ("properties", "fault"),
    [
        ({"a": {"type": "string", "x-mcp-header": ""}}, "must be a token"),
        ({"a": {"type": "string", "x-mcp-header": "A B"}}, "must be a token"),
        ({"a": {"type": "string", "x-mcp-header": "A\r\nB"}}, "must be a token"),
        ({"a": {"type": "number", "x-mcp-header": "A"}}, "of type string, integer or boolean"),
        ({"a": {"type": ["string", "null"], "x-mcp-header": "A"}}, "of type string, integer or boolean"),
        ({"a": {"items": {"type": "string", "x-mcp-header": "A"}}}, "reached by `properties` alone"),
        ({"a": {"anyOf": [{"type": "string", "x-mcp-header": "A"}]}}, "reached by `properties` alone"),
        ({"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}, "is used twice"),
        ({"a": json.loads('{"not":' * 128 + "{}" + "}" * 128)}, "nested deeper than 64 levels"),
    ],
)
def test_a_header_that_no_client_would_send_is_refused(tmp_path: Path, properties: dict[str, Any], fault: str) -> None:
    found = faults(tmp_path, tool(input_schema={"type": "object", "properties": properties}))
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.must("L-08")
def test_all_faults_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = (
        HEAD
        + """      - name: a
        workflo: w
        task: never
        input_schema: {type: object}
      - name: a
        name: b
        workflow: w
        task: never
        input_schema: {type: array}
  other:
    tools: []
    color: red
"""
    )
    assert faults(tmp_path, text) == [
        "5: tools[0].workflow: is missing",
        "6: tools[0].workflo: is not a key that is known here",
        "9: tools[1].name: the tool a is there twice",
        "10: tools[1].name: the key is there twice",
        "13: tools[1].input_schema.type: the root must have `type: object`",
        "16: color: is not a key that is known here",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "1: the file is empty"),
        ("a: [", "1: not well-formed YAML"),
        ("a: 1\n b: 2", "2: not well-formed YAML"),
        ("5", "1: must be a mapping"),
        ("null", "1: must be a mapping"),
        ("version: 1\ntenants: {}", "2: tenants: must map 1 to 1,000 tenants"),
        ("version: 1", "1: tenants: is missing"),
        ("version: 1\ntenants:\n  'a b': {tools: []}", "3: tenants.a b: a tenant's name must be"),
        ("version: 1\nx: &a [*a]", "2: x[0]: an alias must not contain itself"),
        ("version: 1\nx: !!python/object:os.system {}", "2: x: is not a key"),
        ("version: .inf", "1: version: the number must be finite"),
        ("version: 1\ntenants:\n  - dev", "2: tenants: must map"),
        ("a: 1\n---\nb: 2", "not well-formed YAML"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    found = faults(tmp_path, text)
    assert any(fault in line for line in found), found


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"version: 1\n# \xff\n")
    with pytest.raises(ConfigFileError, match="2: the file must be UTF-8"):
        load_routes(str(path))


def test_aliases_may_be_used_but_do_not_blow_up(tmp_path: Path) -> None:
    assert routes_of(
        tmp_path,
        HEAD
        + "      - {name: a, workflow: w, task: never, input_schema: &s {type: object}}\n"
        + "      - {name: b, workflow: w, task: never, input_schema: *s}\n",
    )["b"]
    bomb = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    assert any("more than" in line for line in faults(tmp_path, bomb))


def test_the_shipped_schema_accepts_the_file_it_is_shipped_for() -> None:
    schema = routes_schema()
    jsonschema_rs.Draft202012Validator(schema)
    assert set(schema["$defs"]["tool"]["properties"]) > {"name", "workflow", "task", "input_schema", "inline_wait"}


def test_in_development_mode_tools_are_granted_by_tenant_alone(tmp_path: Path) -> None:
    routes = load_routes(write(tmp_path, tool()))
    assert routes.find(Caller(tenant="dev", issuer="i", subject="s", is_development=True), "t")
    other = Caller(tenant="other", issuer="i", subject="s", is_development=True)
    assert routes.find(other, "t") is None
    assert routes.granted(other) == ()
    assert Routes({}).granted(other) == ()


def test_a_tenant_lives_in_the_cell_that_the_file_says(tmp_path: Path) -> None:
    cells = "cells: {east: 'dns:///store.east:7233'}\n"
    text = HEAD.replace("tenants:", f"{cells}tenants:") + f"      - {json.dumps(GOOD)}\n  acme: {{cell: east, tools: []}}\n"
    routes = load_routes(write(tmp_path, text))
    assert (routes.cell_of("dev"), routes.cell_of("acme"), routes.cell_of("nobody")) == ("default", "east", "default")
    assert routes.cells == {"east": "dns:///store.east:7233"}
    assert routes.used_cells() == {"default", "east"}


def test_faults_of_cells_are_told(tmp_path: Path) -> None:
    text = (
        "version: 1\ncells:\n  default: a:1\n  East: b:1\n  west: two words\ntenants:\n  dev:\n    cell: north\n    tools: []\n"
    )
    name = "a cell's name must be 1 to 63 of a-z 0-9 -, and not `default`, which is the store of the settings"
    assert faults(tmp_path, text) == [
        f"3: cells.default: {name}",
        f"4: cells.East: {name}",
        "5: cells.west: must be `host:port`, or `dns:///name:port` for many",
        "8: cell: north is not among the `cells`",
    ]
