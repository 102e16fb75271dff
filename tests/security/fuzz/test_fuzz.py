"""A short run of the fuzzer; the long one is `make fuzz`. Security checklist H20, G11."""

import subprocess
import sys

import pytest

from tests.pair import ROOT


@pytest.mark.row("H20", "G11")
def test_bodies_and_messages_that_are_nearly_right_break_nothing_and_leave_nothing_behind() -> None:
    command = [sys.executable, "-m", "tests.security.fuzz", "--bodies", "2000", "--messages", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("faults: 0") == 2
