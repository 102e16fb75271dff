"""The walk that k8s/README.md gives to a newcomer, by its very commands."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "k8s" / "README.md"
FIRST: Final = "make image-tools"
LAST: Final = "podman network rm"
SECONDS: Final = 1_800


def commands() -> tuple[str, str]:
    """What the README says to do, up to the end of the trial, and how to end it."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    first = next(number for number, block in enumerate(blocks) if block.startswith(FIRST))
    last = next(number for number, block in enumerate(blocks) if LAST in block)
    return "".join(blocks[first:last]), blocks[last]


def take(say: Callable[[str], None]) -> None:
    """Does what the README says, one command after another, and ends it. Raises RuntimeError."""
    say("the commands of k8s/README.md")
    trial, end = commands()
    try:
        output = _shell(trial)
        if output.count("Hello, Ann!") < 2:
            raise RuntimeError("the results are not there")
    finally:
        _shell("".join(re.findall(r"^export .*\n", trial, re.MULTILINE)) + end)


def _shell(script: str) -> str:
    """What a script prints, which is shown as it comes. Raises RuntimeError where a command of it fails."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-x", "-c", script],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in process.stdout or ():
        print("   ", line, end="", flush=True)
        lines.append(line)
    if process.wait(SECONDS) != 0:
        raise RuntimeError(f"the walk ended with {process.returncode}")
    return "".join(lines)
