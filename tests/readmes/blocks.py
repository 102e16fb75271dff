"""What the READMEs have a reader type or copy: their fenced blocks, and the commands in their sentences."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PROGRAMS: Final = (
    "make",
    "pip",
    "python",
    "pytest",
    "kubectl",
    "protoc",
    "openssl",
    "export",
    "tenure",
    "tenure-store",
    "tenure-bridge",
)
_SHELL: Final = "sh"


@dataclass(frozen=True)
class Block:
    """One fenced block; those that show something and are no code have no language."""

    file: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, without a comment beside it."""
        return self.text.lstrip().splitlines()[0].split("  #")[0].strip()


def files() -> list[str]:
    """Every README in English; the other one is held to it by a test of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "README.md", "*/README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def blocks() -> list[Block]:
    """All that is code."""
    found = []
    for file in files():
        for language, text in _FENCED.findall((ROOT / file).read_text()):
            kind = language or (_SHELL if program(text.split(maxsplit=1)[0]) else "")
            if kind:
                found.append(Block(file, kind, text))
    return found


def commands() -> Iterator[tuple[str, str]]:
    """Each command, of blocks and of sentences, with its file."""
    for block in blocks():
        if block.language == _SHELL:
            for line in block.text.splitlines():
                if line.strip() and not line.startswith("#"):
                    yield block.file, re.sub(r"\s+#.*", "", line)
    for file in files():
        sentences = _FENCED.sub("", (ROOT / file).read_text()).replace("\n", " ")
        for code in re.findall(r"`([^`]+)`", sentences):
            if " " in code and program(code.split()[0]):
                yield file, code


def program(word: str) -> str | None:
    """The program that a word names."""
    name = word.rpartition("/")[2]
    return name if name in _PROGRAMS else None
