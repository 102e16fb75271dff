"""Reads the named queries of a `.sql` file beside this module."""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Queries(Mapping[str, str]):
    """The queries of one file, by name. A query starts at its `-- name:` line and ends at the next one."""

    def __init__(self, file: str) -> None:
        text = files(__package__).joinpath(file).read_text(encoding="utf-8")
        parts = _NAME.split(text)
        self._texts = {name: f"-- {name}\n{body.strip()}" for name, body in zip(parts[1::2], parts[2::2], strict=True)}

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def name_of(query: str) -> str:
    """The name that a query has in its file."""
    return query[3 : query.index("\n")]
