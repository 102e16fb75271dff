"""Files of configuration: read with the line of each value, held against a JSON Schema, every fault told at once."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any, Final

import msgspec
from jsonschema_rs import Draft202012Validator, ValidationError, ValidationErrorKind

from mcp_bridge.access.yaml_lines import Document, Path, Problem, read_yaml

FILE_BYTES: Final = 16 * 1024 * 1024


class ConfigFileError(Exception):
    """The file cannot be used. `problems` has everything that is wrong with it, in the order of its lines."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        self.problems = sorted(set(problems), key=lambda one: (one.line, str(one.path), one.reason))
        super().__init__("\n".join(f"{path}:{one.line}: {_place(one.path)}{one.reason}" for one in self.problems))


def read_document(path: str) -> Document:
    """The file as YAML. Raises ConfigFileError for one that is too large or no text, OSError when there is none."""
    return parse_document(path, read_file(path))


def read_file(path: str) -> bytes:
    """What is in the file; a little too much of it where it is too large. Raises OSError."""
    with FilePath(path).open("rb") as file:
        return file.read(FILE_BYTES + 1)


def parse_document(path: str, data: bytes) -> Document:
    """The content of a file as YAML. Raises ConfigFileError for one that is too large or no text."""
    if len(data) > FILE_BYTES:
        raise ConfigFileError(path, [Problem(1, (), f"the file is larger than {FILE_BYTES} bytes")])
    try:
        return read_yaml(data.decode())
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigFileError(path, [Problem(line, (), "the file must be UTF-8")]) from None


def read_schema(name: str) -> dict[str, Any]:
    """A JSON Schema that lies beside this file."""
    return msgspec.json.decode(files("mcp_bridge.access").joinpath(name).read_bytes(), type=dict[str, Any])


def check_shape(document: Document, schema: Mapping[str, Any]) -> None:
    """Adds to the document's problems whatever breaks the schema, in the words of the schema's descriptions."""

    def problem(path: Path, reason: str) -> None:
        document.problems.append(Problem(document.line(path), path, reason))

    for error in Draft202012Validator(dict(schema)).iter_errors(document.value):
        path = tuple(error.instance_path)
        match error.kind:
            case ValidationErrorKind.AdditionalProperties(unexpected=names):
                for name in names:
                    problem((*path, name), "is not a key that is known here")
            case ValidationErrorKind.Required(property=name):
                problem((*path, name), "is missing")
            case ValidationErrorKind.PropertyNames(error=inner):
                problem((*path, str(inner.instance)), _rule(schema, error))
            case _:
                problem(path, _rule(schema, error))


def as_mapping(value: object) -> Mapping[str, Any]:
    """The value, or an empty mapping in its place."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """The value, or an empty list in its place."""
    return value if isinstance(value, list) else []


def _rule(schema: Mapping[str, Any], error: ValidationError) -> str:
    """What the schema says in words about the value that broke it."""
    node: Any = schema
    for step in error.schema_path[:-1]:
        node = node[step]
    return str(node.get("description", error.message[:200]))


def _place(path: Path) -> str:
    """A path as it is told to people, within its tenant: `tools[0].workflow: `."""
    shown = path[2:] if path[:1] == ("tenants",) and len(path) > 2 else path
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in shown)
    return f"{text.removeprefix('.')}: " if text else ""
