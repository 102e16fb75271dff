"""How often a process that serves searches for garbage."""

import gc
import os
import threading
from pathlib import Path
from typing import Final

_THRESHOLDS: Final = (20_000, 20, 20)
_PAUSE_SECONDS: Final = 1.0
_GROWTH_BYTES: Final = 32 * 1024 * 1024
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MEMORY: Final = Path("/proc/self/statm")


def settle_garbage() -> None:
    """Leaves out of all searches what is there now, and searches less often. To be called once a process serves.

    What a call leaves behind goes when nobody refers to it any more. The search is for what refers to itself, which is little,
    and by Python's own measure it is made for every few calls: a tenth of their time and more. But it may hold much, as
    an error that is kept holds the call that it ended, with its payload. So where the process has grown, all is searched.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    if _MEMORY.exists():
        threading.Thread(target=_search_when_grown, name="garbage", daemon=True).start()


def _search_when_grown() -> None:
    settled, never = _resident_bytes(), threading.Event()
    while not never.wait(_PAUSE_SECONDS):  # by no civil clock
        settled = min(settled, now := _resident_bytes())
        if now - settled > _GROWTH_BYTES:
            gc.collect()
            settled = _resident_bytes()


def _resident_bytes() -> int:
    return int(_MEMORY.read_text().split()[1]) * _PAGE_BYTES
