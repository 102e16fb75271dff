"""Writes a batch into a folder and kills itself before the nth line of the folder's code: FOLDER N."""

import asyncio
import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Final

from store_service.archive import folder
from store_service.archive.batches import Batch, BatchId

BATCH: Final = Batch(BatchId("acme", 1, 3), b'{"proof":1}\n' * 20_000)


def kill_before(nth: int) -> None:
    """Kills this process before a thread of it comes to the nth line."""
    lines = count(1)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != folder.__file__:
            return None
        if event == "line" and next(lines) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)


if __name__ == "__main__":
    kill_before(int(sys.argv[2]))
    asyncio.run(folder.Folder(Path(sys.argv[1])).put_batch(BATCH))
