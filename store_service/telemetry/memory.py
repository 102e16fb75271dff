"""What a process that serves does with the memory that calls gave back."""

import ctypes
import os
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 * 1024 * 1024
_OWN_MAPPING_BYTES: Final = 8 * 1024 * 1024
"""More than the longest message has."""


def keep_memory() -> None:
    """Keeps up to 64 MiB of what was given back for what comes next, instead of handing it to the kernel. Where the C library
    is not glibc it does nothing.

    By itself glibc keeps little: a batch of large results is handed back as soon as it has been sent, and each page of the next
    is asked for and cleared again, which is a third of what the store takes for a result of 64 KB.
    """
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    if (set_option := getattr(libc, "mallopt", None)) is not None:
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
        set_option(_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)
