"""Flame graphs of the processes under load, by py-spy: of threads that run Python or what it calls, not of those that wait."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.pair import Process

SAMPLES_PER_SECOND: Final = 200


class Profile:
    """Watches processes until it is stopped; leaves a folder with a flame graph (SVG) of each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watching: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.svg"):
            old.unlink()

    def watch(self, process: Process) -> None:
        """Begins to look at a process; one of the same name that came before keeps its graph."""
        same = len(list(self._folder.glob(f"{process.name}*.svg")))
        target = self._folder / f"{process.name}{f'-{same + 1}' if same else ''}.svg"
        target.touch()
        command: list[str | Path] = [
            Path(sys.executable).with_name("py-spy"), "record", "--format", "flamegraph", "--rate", str(SAMPLES_PER_SECOND),
            "--gil", "--nonblocking", "--duration", "3600", "--output", target, "--pid", str(process.pid),
        ]  # fmt: skip
        log = (self._folder / "py-spy.log").open("ab")
        self._watching.append(subprocess.Popen(command, stdout=log, stderr=log))
        log.close()

    def stop(self) -> None:
        """Ends the looking, while the processes still run, and writes what was seen."""
        for each in self._watching:
            if each.poll() is None:
                each.send_signal(signal.SIGINT)
        for each in self._watching:
            each.wait(60)
        self._watching.clear()
