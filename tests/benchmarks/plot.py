"""Draws a run, by matplotlib in an environment of its own."""

import subprocess
from pathlib import Path

from tests.benchmarks import peer

PROGRAM = Path(__file__).parent / "drawing" / "draw.py"


def draw(kept: Path) -> str:
    """Draws the run kept in a JSON file beside it, as SVG and PNG. Returns a line that says where, or why not."""
    try:
        python = peer.python_of("plot")
    except peer.MissingPeerError as error:
        return f"not drawn: {error}"
    done = subprocess.run([python, PROGRAM, kept], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"not drawn: {done.stderr.strip()[-2000:]}"
    return f"drawn in {kept.with_suffix('.svg').name} and {kept.with_suffix('.png').name} beside it"
