"""What the tests start does not outlive them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pair import ROOT, free_ports
from tests.pgbouncer import MISSING, PROGRAM
from tests.store.clusters import has_ended, on_linux, wait_until
from tests.tied import TIED

# Each says a process's id, and waits.
PAIR = """
from pathlib import Path
from tests.pair import Process
process = Process("sleeper", ["-c", "import time; time.sleep(600)"], environment={}, log=Path(sys.argv[1]) / "log")
print(process.pid, flush=True)
sys.stdin.read()
"""
PGBOUNCER = """
import asyncio
from pathlib import Path
from tests.pgbouncer import PgBouncer
bouncer = PgBouncer(Path(sys.argv[1]), "postgresql://ann:secret@127.0.0.1:1/none", port=int(sys.argv[2]))
asyncio.run(bouncer.start())
print(bouncer.pid, flush=True)
sys.stdin.read()
"""


def is_tied(pid: int) -> bool:
    """Whether it runs what it was started for: before that it is `setpriv`, which may not have tied it yet."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"--pdeathsig" not in command.split(b"\0") and not has_ended(pid)


@on_linux
@pytest.mark.skipif(not TIED, reason="2026-11-30: setpriv is not installed")
@pytest.mark.parametrize(
    "code",
    [PAIR, pytest.param(PGBOUNCER, marks=pytest.mark.skipif(PROGRAM is None, reason=MISSING))],
    ids=["pair", "pgbouncer"],
)
def test_a_process_ends_with_the_tests_that_started_it(tmp_path: Path, code: str) -> None:
    command = [sys.executable, "-c", "import sys" + code, str(tmp_path), str(*free_ports(1))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        wait_until(lambda: is_tied(pid), at_most_seconds=60)
        owner.kill()
        owner.wait()
        wait_until(lambda: has_ended(pid), at_most_seconds=60)
