"""`x-mcp-header`: the arguments of a tool that its calls repeat in headers, as its input schema says.

The bridge refuses a route file, and the client a tool, that breaks a rule of it. Source: contract, section 10.21; the
transport's custom headers from tool parameters.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

HEADER: Final = "x-mcp-header"
SCHEMA_LEVELS: Final = 64

Path = tuple[str | int, ...]
Mirrored = Mapping[str, tuple[str, ...]]
"""The ending of each `Mcp-Param-*` of a tool, to the path of the argument that it repeats."""
Report = Callable[[Path, str], None]
"""Takes what is wrong, and where in the schema."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_MIRRORED_TYPES: Final = ("string", "integer", "boolean")
_VALUES: Final = frozenset(("const", "enum", "default", "examples"))
_BY_NAME: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))


def read_mirrored(schema: Mapping[str, Any], report: Report) -> dict[str, tuple[str, ...]]:
    """Each `x-mcp-header` of an input schema. Reports those that a client must not follow. Raises ValueError for a schema
    of too many levels."""
    mirrored: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for path, node in subschemas(schema):
        if HEADER not in node:
            continue
        name, here = node[HEADER], (*path, HEADER)
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
            mirrored[name] = tuple(str(step) for step in path[1::2])
    return mirrored


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every schema in a schema, itself included, but not the values that only look like one. Raises ValueError for one of
    too many levels."""
    if len(path) > 2 * SCHEMA_LEVELS:
        raise ValueError(f"is nested deeper than {SCHEMA_LEVELS} levels")
    if isinstance(schema, dict):
        yield path, schema
        for keyword, value in schema.items():
            if keyword in _BY_NAME and isinstance(value, dict):
                for name, inner in value.items():
                    yield from subschemas(inner, (*path, keyword, name))
            elif keyword not in _VALUES:
                yield from subschemas(value, (*path, keyword))
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            yield from subschemas(inner, (*path, index))
