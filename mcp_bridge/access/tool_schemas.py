"""The JSON Schemas of tools: which are taken, and what they say about headers.

Source: contract, section 10.21; the transport's rules for `x-mcp-header`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from jsonschema_rs import Draft202012Validator, ReferencingError, RegexOptions

from mcp_bridge.access.routes import Arguments

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_BYTES: Final = 256 * 1024
HEADER: Final = "x-mcp-header"

Path = tuple[str | int, ...]
Report = Callable[[Path, str], None]
"""Takes what is wrong, and where in the schema."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUES: Final = frozenset(("const", "enum", "default", "examples"))
_BY_NAME: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_MIRRORED_TYPES: Final = ("string", "integer", "boolean")
_REASON_CHARACTERS: Final = 200


def compile_arguments(schema: Mapping[str, Any], report: Report) -> Arguments | None:
    """The checks of a tool's arguments. Reports what is wrong with the schema; then there are none."""
    faults: list[str] = []

    def note(path: Path, reason: str) -> None:
        faults.append(reason)
        report(path, reason)

    if schema.get("type") != "object":
        note(("type",), "the root must have `type: object`")
    mirrored = _mirrored(schema, note)
    validator = compile_schema(schema, note)
    return None if faults or validator is None else Arguments(validator, mirrored)


def compile_schema(schema: Mapping[str, Any], report: Report) -> Draft202012Validator | None:
    """The validator of a schema of dialect 2020-12 that refers to nothing outside itself.

    Patterns are matched in linear time, so those that look ahead, look behind or refer back are refused. Nothing is
    ever fetched. Reports what is wrong.
    """
    if len(msgspec.json.encode(schema)) > SCHEMA_BYTES:
        report((), f"must be at most {SCHEMA_BYTES} bytes as JSON")
        return None
    is_sound = True
    for path, node in _subschemas(schema):
        dialect, reference = node.get("$schema", DIALECT), node.get("$ref", node.get("$dynamicRef", ""))
        if dialect not in (DIALECT, DIALECT + "#"):
            report((*path, "$schema"), f"must be {DIALECT}; other dialects are not supported")
            is_sound = False
        elif isinstance(reference, str) and "://" in reference and not reference.startswith(DIALECT):
            report((*path, "$ref"), "must not refer to another document; nothing is fetched")
            is_sound = False
    if not is_sound:
        return None
    try:
        return Draft202012Validator(dict(schema), pattern_options=RegexOptions(), offline=True)
    except (ValueError, ReferencingError) as error:  # jsonschema_rs.ValidationError is a ValueError
        path = tuple(getattr(error, "instance_path", ()))
        report(path, f"is not a valid JSON Schema: {str(error).splitlines()[0][:_REASON_CHARACTERS]}")
        return None


def _mirrored(schema: Mapping[str, Any], report: Report) -> dict[str, tuple[str, ...]]:
    """Each `x-mcp-header` with the path of its property. Reports those that no client would accept."""
    mirrored: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for path, node in _subschemas(schema):
        if HEADER not in node:
            continue
        name, here = node[HEADER], (*path, HEADER)
        steps = path[1::2]
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            report(here, "must be a token of a header's name")
        elif not path or any(step != "properties" for step in path[::2]):
            report(here, "must stand on a property that is reached by `properties` alone")
        elif node.get("type") not in _MIRRORED_TYPES:
            report(here, "must stand on a property of type string, integer or boolean")
        elif name.lower() in taken:
            report(here, "is used twice; names are compared without case")
        else:
            taken.add(name.lower())
            mirrored[name] = tuple(str(step) for step in steps)
    return mirrored


def _subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every schema in a schema, itself included, but not the values that only look like one."""
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
            yield from _subschemas(inner, (*path, index))
