"""The route file: read, checked as a whole, and every fault told at once with its line.

Source: contract, sections 4 and 10.21. The shape is in `routes.schema.json` beside this file.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from mcp_bridge.access.answers import METHODS, check_question
from mcp_bridge.access.config_files import (
    ConfigFileError,
    as_list,
    as_mapping,
    check_shape,
    parse_document,
    read_file,
    read_schema,
)
from mcp_bridge.access.grants import Grants
from mcp_bridge.access.grants_file import read_grants
from mcp_bridge.access.limits import CALLER, TENANT, TenantLimits
from mcp_bridge.access.routes import Arguments, Route, Routes, TaskMode
from mcp_bridge.access.tool_schemas import compile_arguments, compile_schema
from mcp_bridge.access.yaml_lines import Document, Path, Problem
from mcp_bridge.wire.questions import Question

QUESTION_BYTES: Final = 64 * 1024
KEY_BYTES: Final = 128

_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DAY_MS: Final = 86_400_000
_BOUNDS: Final[Mapping[str, tuple[int, int, str]]] = {
    "ttl": (1_000, 3_650 * _DAY_MS, "1s to 3650d"),
    "poll_interval": (10, 3_600_000, "10ms to 1h"),
    "longest_poll_interval": (10, 3_600_000, "10ms to 1h"),
    "inline_wait": (0, 2_000, "0s to 2s"),
    "call_timeout": (1, _DAY_MS, "1ms to 1d"),
    "answer_within": (1_000, 30 * _DAY_MS, "1s to 30d"),
    "disconnect_grace": (0, 3_600_000, "0s to 1h"),
    "execution_deadline": (1, 365 * _DAY_MS, "1ms to 365d"),
}
_DEFAULTS: Final[Mapping[str, str]] = {
    "ttl": "1h",
    "poll_interval": "1s",
    "longest_poll_interval": "30s",
    "inline_wait": "0s",
    "call_timeout": "60s",
    "answer_within": "1h",
    "disconnect_grace": "10s",
    "execution_deadline": "",
}
_SHOWN: Final[Mapping[str, str]] = {
    "name": "name",
    "title": "title",
    "description": "description",
    "input_schema": "inputSchema",
    "output_schema": "outputSchema",
    "icons": "icons",
    "annotations": "annotations",
}


def load_routes(path: str) -> Routes:
    """The routes in a file. Raises ConfigFileError, or OSError when there is no such file."""
    return parse_routes(path, read_file(path))


def parse_routes(path: str, data: bytes) -> Routes:
    """The routes that are written in `data`, the content of `path`. Raises ConfigFileError."""
    document = parse_document(path, data)
    routes = _Check(document).routes()
    if document.problems:
        raise ConfigFileError(path, document.problems)
    return routes


def routes_schema() -> dict[str, Any]:
    """The JSON Schema of route files."""
    return read_schema("routes.schema.json")


class _Check:
    """One pass over a document. Faults go to the document's problems; the routes are made only if there are none."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def routes(self) -> Routes:
        if self._document.value is None and self._document.problems:
            return Routes({})
        check_shape(self._document, routes_schema())
        cells = as_mapping(as_mapping(self._document.value).get("cells"))
        takes: dict[Path, Arguments] = {}
        for tenant, content in as_mapping(as_mapping(self._document.value).get("tenants")).items():
            cell = as_mapping(content).get("cell")
            if isinstance(cell, str) and cell not in cells:
                self._problem(("tenants", tenant, "cell"), f"{cell} is not among the `cells`")
            names: set[str] = set()
            for index, tool in enumerate(as_list(as_mapping(content).get("tools"))):
                path: Path = ("tenants", tenant, "tools", index)
                self._check_tool(as_mapping(tool), path, names)
                self._check_advertise(as_mapping(tool), as_mapping(content), path)
                if arguments := self._check_schemas(as_mapping(tool), path):
                    takes[path] = arguments
        if self._document.problems:
            return Routes({})
        root = self._document.value
        return Routes(
            {
                tenant: {
                    tool["name"]: _route(tool, takes["tenants", tenant, "tools", index], read_grants(root, content, tool))
                    for index, tool in enumerate(content["tools"])
                }
                for tenant, content in root["tenants"].items()
            },
            {tenant: read_grants(root, content) for tenant, content in root["tenants"].items() if "grants" in content},
            {tenant: _limits(content) for tenant, content in root["tenants"].items()},
            dict(cells),
            {tenant: content["cell"] for tenant, content in root["tenants"].items() if "cell" in content},
        )

    def _check_polls(self, tool: Mapping[str, Any], path: Path) -> None:
        shortest, longest = (_ms(tool.get(key, _DEFAULTS[key])) for key in ("poll_interval", "longest_poll_interval"))
        if "longest_poll_interval" in tool and shortest is not None and longest is not None and longest < shortest:
            self._problem((*path, "longest_poll_interval"), "must not be less than poll_interval")

    def _check_tool(self, tool: Mapping[str, Any], path: Path, names: set[str]) -> None:
        name = tool.get("name")
        if isinstance(name, str):
            if name in names:
                self._problem((*path, "name"), f"the tool {name} is there twice")
            names.add(name)
        self._check_polls(tool, path)
        for key, (least, most, words) in _BOUNDS.items():
            value = _ms(tool.get(key))
            if value is not None and not least <= value <= most:
                self._problem((*path, key), f"must be {words}")
        if _ms(tool.get("inline_wait")) and tool.get("task") != "optional":
            self._problem((*path, "inline_wait"), "works only with `task: optional`")
        self._check_preflight(as_list(tool.get("preflight")), (*path, "preflight"))

    def _check_advertise(self, tool: Mapping[str, Any], tenant: Mapping[str, Any], path: Path) -> None:
        said = {**as_mapping(tenant.get("grants")), **as_mapping(tool.get("grants"))}
        if tool.get("advertise") and "scopes" not in as_mapping(said.get("call")):
            self._problem((*path, "advertise"), "works only with `call: {scopes: ...}` among the grants")

    def _check_preflight(self, questions: list[Any], path: Path) -> None:
        keys: set[str] = set()
        for index, question in enumerate(questions):
            here: Path = (*path, index)
            key, method, params = (as_mapping(question).get(name) for name in ("key", "method", "params"))
            if isinstance(key, str):
                if key in keys:
                    self._problem((*here, "key"), f"the key {key} is there twice")
                if not key.strip() or len(key.encode()) > KEY_BYTES:
                    self._problem((*here, "key"), f"must be a text of 1 to {KEY_BYTES} bytes that is not blank")
                keys.add(key)
            if method in METHODS and isinstance(params, dict | None):
                self._check_params(method, params or {}, (*here, "params"))

    def _check_params(self, method: str, params: Mapping[str, Any], path: Path) -> None:
        check_question(method, params, lambda at, why: self._problem((*path, *at), why))
        if len(msgspec.json.encode(params)) > QUESTION_BYTES:
            self._problem(path, f"must be at most {QUESTION_BYTES} bytes as JSON")

    def _check_schemas(self, tool: Mapping[str, Any], path: Path) -> Arguments | None:
        output, taken = tool.get("output_schema"), tool.get("input_schema")
        if isinstance(output, dict):
            compile_schema(output, lambda at, why: self._problem((*path, "output_schema", *at), why))
        if not isinstance(taken, dict):
            return None
        return compile_arguments(taken, lambda at, why: self._problem((*path, "input_schema", *at), why))

    def _problem(self, path: Path, reason: str) -> None:
        self._document.problems.append(Problem(self._document.line(path), path, reason))


def _limits(tenant: Mapping[str, Any]) -> TenantLimits:
    return TenantLimits(
        caller=replace(CALLER, **tenant.get("caller_limits", {})), tenant=replace(TENANT, **tenant.get("limits", {}))
    )


def _route(tool: Mapping[str, Any], arguments: Arguments, grants: Grants) -> Route:
    """A route of a tool that was found right."""
    durations = {key: _ms(tool.get(key, default)) or 0 for key, default in _DEFAULTS.items()}
    output = tool.get("output_schema")
    return Route(
        tool=tool["name"],
        description=msgspec.json.encode(_describe(tool)),
        legacy_description=_describe_to_legacy(tool),
        workflow=tool["workflow"],
        workflow_version=tool.get("workflow_version", 1),
        task=TaskMode(tool["task"]),
        arguments=arguments,
        output_schema=b"" if output is None else msgspec.json.encode(output),
        requires=tuple(tool.get("requires", ())),
        preflight=tuple(_question(one) for one in tool.get("preflight", ())),
        priority=tool.get("priority", 0),
        ttl_ms=durations["ttl"],
        poll_interval_ms=durations["poll_interval"],
        longest_poll_ms=max(durations["poll_interval"], durations["longest_poll_interval"]),
        inline_wait_ms=durations["inline_wait"],
        call_timeout_ms=durations["call_timeout"],
        answer_within_ms=durations["answer_within"],
        max_detaches=tool.get("max_detaches", 5),
        disconnect_grace_ms=durations["disconnect_grace"],
        continues_on_disconnect=tool.get("on_disconnect") == "continue",
        execution_deadline_ms=durations["execution_deadline"],
        grants=grants,
        advertise=tool.get("advertise", False),
    )


def _question(question: Mapping[str, Any]) -> Question:
    return Question(question["key"], question["method"], msgspec.json.encode(question.get("params", {})))


def _describe(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool as `tools/list` shows it, the schemas as they were written."""
    return {name: tool[key] for key, name in _SHOWN.items() if key in tool}


def _describe_to_legacy(tool: Mapping[str, Any]) -> bytes:
    """The tool as earlier clients are shown it: they read no output but objects. Empty for one that they cannot call."""
    if tool["task"] == "required" or tool.get("requires") or tool.get("preflight"):
        return b""
    shown = _describe(tool)
    if as_mapping(shown.get("outputSchema")).get("type") != "object":
        shown.pop("outputSchema", None)
    return msgspec.json.encode(shown)


def _ms(text: object) -> int | None:
    """A duration in milliseconds; None for what is none."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    return int(match[1]) * _UNIT_MS[match[2]] if match else None
