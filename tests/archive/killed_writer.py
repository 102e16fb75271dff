"""Writes a batch into a folder and kills itself as soon as the folder has changed for the nth time: FOLDER N."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

from store_service.archive import folder
from store_service.archive.batches import Batch, BatchId

BATCH: Final = Batch(BatchId("acme", 1, 3), b'{"proof":1}\n' * 20_000)


def kill_at(place: Path, nth: int) -> None:
    """Kills this process before the next line of Python after that change, also of what the folder's code calls."""
    seen = [_look(place)]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not _is_called_by_folder(frame):
            return None
        if event == "line" and (now := _look(place)) != seen[-1]:
            seen.append(now)
            if len(seen) > nth:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)


def _look(place: Path) -> list[tuple[str, int]]:
    """Names and sizes."""
    return [
        (name, os.stat(os.path.join(above, name)).st_size)  # noqa: PTH116, PTH118 (less to trace)
        for above, folders, files in os.walk(place)
        for name in (*folders, *files)
    ]


def _is_called_by_folder(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == folder.__file__:
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    kill_at(Path(sys.argv[1]), int(sys.argv[2]))
    asyncio.run(folder.Folder(Path(sys.argv[1])).put_batch(BATCH))
