"""A small disk of a run's own, which can be full: a tmpfs, where one may mount."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Self


class SmallDisk:
    """A tmpfs on a folder."""

    def __init__(self, folder: Path, most_mib: int) -> None:
        self._folder = folder
        self._most_mib = most_mib

    @classmethod
    def mount(cls, folder: Path, most_mib: int) -> Self | None:
        """Mounts one; None where nothing can be mounted."""
        folder.mkdir(parents=True, exist_ok=True)
        if not _run("mount", "-t", "tmpfs", "-o", f"size={most_mib}m,mode=0755", "tmpfs", str(folder)):
            return None
        return cls(folder, most_mib)

    def fill(self) -> None:
        """Leaves no room: its size becomes what is in it."""
        while True:
            taken = os.statvfs(self._folder)
            with contextlib.suppress(OSError):  # more was written since
                self._resize(f"{(taken.f_blocks - taken.f_bfree) * taken.f_frsize // 1024}k")
                return

    def free(self) -> None:
        """Makes room again."""
        self._resize(f"{self._most_mib}m")

    def unmount(self) -> None:
        """Lets it go, with all that is in it."""
        _run("umount", "-l", str(self._folder))

    def _resize(self, size: str) -> None:
        if not _run("mount", "-o", f"remount,size={size}", str(self._folder)):
            raise OSError(f"the disk at {self._folder.name} cannot be given {size}")


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except FileNotFoundError:
        return False
