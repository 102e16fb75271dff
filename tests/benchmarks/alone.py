"""One run at a time in a checkout, as runs share their folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class NotAloneError(RuntimeError):
    """Another process measures here. The message says which."""


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a folder, which is made, for this process; it is free when the process is gone. Raises NotAloneError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip()
            raise NotAloneError(
                f"process {owner} measures in {folder} already: wait until it has ended, or measure in another checkout"
            ) from None
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        yield
