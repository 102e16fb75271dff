"""YAML, read so that each value knows its line, and as nothing but JSON would be read.

The words of YAML 1.2's core schema are used: `yes` is a text, a date is a text, `true` is a boolean.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Path = tuple[str | int, ...]

_MOST_VALUES: Final = 500_000
_NULL = re.compile(r"|~|null|Null|NULL")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]{1,640}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CORE: Final = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a document, where."""

    line: int
    """From 1."""
    path: Path
    reason: str


@dataclass(slots=True)
class Document:
    """A document as JSON builtins, and the line of each value by its path."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of a value, or of the nearest one above it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str) -> Document:
    """Reads one document. What is wrong with it is told in `problems`, all at once unless the syntax itself is broken."""
    document = Document()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        document.problems.append(Problem(line, (), f"not well-formed YAML: {error.problem or error.context}"))
    except (yaml.YAMLError, RecursionError):
        document.problems.append(Problem(1, (), "not well-formed YAML"))
    else:
        if node is None:
            document.problems.append(Problem(1, (), "the file is empty"))
        else:
            document.value = _Reader(document).read(node, (), frozenset())
    return document


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._values = 0

    def read(self, node: Node, path: Path, above: frozenset[int]) -> Any:
        self._values += 1
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in above:
            return self._problem(node, path, "an alias must not contain itself")
        if self._values > _MOST_VALUES:
            if self._values == _MOST_VALUES + 1:
                self._problem(node, path, f"more than {_MOST_VALUES} values")
            return None
        above |= {id(node)}
        if isinstance(node, MappingNode):
            return self._read_mapping(node, path, above)
        if isinstance(node, SequenceNode):
            return [self.read(item, (*path, index), above) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._read_scalar(node, path)

    def _read_mapping(self, node: MappingNode, path: Path, above: frozenset[int]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, ScalarNode) or not isinstance(key, str):
                self._problem(key_node, path, "a key must be a text")
            elif key in mapping:
                self._problem(key_node, (*path, key), "the key is there twice")
            else:
                self._document.lines[(*path, key)] = key_node.start_mark.line + 1
                mapping[key] = self.read(value_node, (*path, key), above)
        return mapping

    def _read_scalar(self, node: ScalarNode, path: Path) -> Any:
        text: str = node.value
        if node.style is not None or node.tag == f"{_CORE}str":  # quoted, a block, or text by its look
            return text
        if not node.tag.startswith(_CORE):
            return self._problem(node, path, f"the tag {node.tag} is not supported")
        if _NULL.fullmatch(text):
            return None
        if _BOOLEAN.fullmatch(text):
            return text.lower() == "true"
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            return number if abs(number) != float("inf") else self._problem(node, path, "the number is out of range")
        if _NOT_FINITE.fullmatch(text):
            return self._problem(node, path, "the number must be finite")
        return text

    def _problem(self, node: Node, path: Path, reason: str) -> None:
        self._document.problems.append(Problem(node.start_mark.line + 1, path, reason))
