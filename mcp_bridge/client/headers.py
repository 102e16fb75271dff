"""The header fields that repeat the body, so that gateways can route by them.

Source: contract, sections 2 and 10.22; the transport's rules for `x-mcp-header`.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mcp_bridge.wire.headers import EVENT_STREAM, JSON
from mcp_bridge.wire.mcp import NAMED_BY, VERSION

Mirrored = Mapping[str, tuple[str, ...]]
"""The ending of each `Mcp-Param-*` of a tool, to the path of the argument that it repeats."""

_AS_IT_IS = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_WRAPPED: Final = "=?base64?"
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER: Final = "x-mcp-header"
_MIRRORED_TYPES: Final = ("string", "integer", "boolean")
_VALUES: Final = frozenset(("const", "enum", "default", "examples"))
_BY_NAME: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_SCHEMA_DEPTH: Final = 64


def encode_value(text: str) -> str:
    """A text as a header's value: as it is where that is safe, in base64 otherwise."""
    if _AS_IT_IS.fullmatch(text) and not text.startswith(_WRAPPED):
        return text
    return f"{_WRAPPED}{base64.b64encode(text.encode()).decode()}?=" if text else ""


def request_headers(method: str, params: Mapping[str, Any], mirrored: Mirrored | None = None) -> dict[str, str]:
    """The header fields of one request."""
    headers = {
        "Accept": f"{JSON}, {EVENT_STREAM}",
        "Content-Type": JSON,
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
    }
    name = params.get(NAMED_BY.get(method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = encode_value(name)
    for suffix, path in (mirrored or {}).items():
        value = _at(params.get("arguments", {}), path)
        if value is not None:
            headers[f"Mcp-Param-{suffix}"] = encode_value(_text(value))
    return headers


def read_mirrored(schema: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Each `x-mcp-header` of a tool's input schema. Raises ValueError for one that a client must not follow."""
    mirrored: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for path, node in _subschemas(schema):
        if _HEADER not in node:
            continue
        name, steps = node[_HEADER], path[1::2]
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ValueError(f"{_HEADER} is not a token of a header's name")
        if not path or any(step != "properties" for step in path[::2]):
            raise ValueError(f"{_HEADER} {name} is not on a property that is reached by properties alone")
        if node.get("type") not in _MIRRORED_TYPES:
            raise ValueError(f"{_HEADER} {name} is not on a string, an integer or a boolean")
        if name.lower() in taken:
            raise ValueError(f"{_HEADER} {name} is used twice")
        taken.add(name.lower())
        mirrored[name] = steps
    return mirrored


def _subschemas(schema: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every schema in a schema, itself included, but not the values that only look like one."""
    if len(path) > _SCHEMA_DEPTH * 2:
        raise ValueError(f"the schema is nested deeper than {_SCHEMA_DEPTH} levels")
    if isinstance(schema, dict):
        yield path, schema
        for keyword, value in schema.items():
            if keyword in _BY_NAME and isinstance(value, dict):
                for name, inner in value.items():
                    yield from _subschemas(inner, (*path, keyword, name))
            elif keyword not in _VALUES:
                yield from _subschemas(value, (*path, keyword))
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            yield from _subschemas(inner, (*path, str(index)))


def _at(arguments: object, path: tuple[str, ...]) -> object:
    for step in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(step)
    return arguments


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
