"""The main job, as a newcomer runs it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.pair import ROOT

DEMO_SECONDS = 180


def test_the_demo_kills_a_worker_prints_the_report_and_leaves_nothing_behind() -> None:
    before = set((ROOT / ".tenure").glob("demo-*"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.examples.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL to worker-" in done.stdout
    assert "fencing token 2" in done.stdout
    assert "Each millimetre of flipper goes with 49.7 g of body mass (r = 0.87, n = 342)." in done.stdout
    assert set((ROOT / ".tenure").glob("demo-*")) == before
    assert not children_in(ROOT / ".tenure" / "demo-"), "processes were left"


def children_in(folder: Path) -> list[str]:
    """The command lines of running processes that name the demo's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found
