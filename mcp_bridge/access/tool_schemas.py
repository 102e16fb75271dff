"""The JSON Schemas of tools: which are taken, and what they say about headers.

Source: contract, section 10.21; the transport's rules for `x-mcp-header`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from jsonschema_rs import Draft202012Validator, ReferencingError, RegexOptions

from mcp_bridge.access.routes import Arguments
from mcp_bridge.wire.mirrored import Path, Report, read_mirrored, subschemas

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_BYTES: Final = 256 * 1024

_REASON_CHARACTERS: Final = 200


def compile_arguments(schema: Mapping[str, Any], report: Report) -> Arguments | None:
    """The checks of a tool's arguments. Reports what is wrong with the schema; then there are none."""
    faults: list[str] = []

    def note(path: Path, reason: str) -> None:
        faults.append(reason)
        report(path, reason)

    if schema.get("type") != "object":
        note(("type",), "the root must have `type: object`")
    try:
        mirrored = read_mirrored(schema, note)
    except ValueError as error:
        note((), str(error))
        return None
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
    try:
        nodes = list(subschemas(schema))
    except ValueError as error:
        report((), str(error))
        return None
    for path, node in nodes:
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
