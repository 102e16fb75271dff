"""Two runs in one checkout."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as bench
from tests.benchmarks.alone import alone
from tests.tied import TIED

HOLD = """
import sys
from pathlib import Path
from tests.benchmarks.alone import alone

with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("options", [[], ["--quick", "--profile"]])
def test_a_second_run_is_refused_at_once_until_the_first_is_gone(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def measure(options: argparse.Namespace) -> int:
        ran.extend(options.names)
        return 0

    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(bench, "_measure", measure)
    monkeypatch.setattr(sys, "argv", ["bench", *options, "P1"])
    command = [*TIED, sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        assert bench.main() == 1
        assert f"process {first.pid} measures in {tmp_path} already: wait until it has ended" in capsys.readouterr().err
        assert ran == []
        first.kill()
        first.wait()
        assert bench.main() == 0
    assert ran == ["P1"]
    with alone(tmp_path):
        assert bench.main() == 1
