"""Keeping freed memory at hand, so that timing a step does not time the operating system.

By default glibc hands large blocks back to the system when they are freed, and takes them anew, page fault by page
fault, in the next step. That can cost a CPU step a sixth of its time, most of it where the peak is high:
it hides what recomputation costs, and makes equal steps unequal.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of glibc's malloc.h
_LARGE_BYTES = 2**30
_TOP_PAD_BYTES = 64 * 2**20


def keep_freed_memory() -> bool:
    """Asks the C library to keep freed memory in this process; says whether it will.

    The process stays as large as it once was. Nothing else changes, and only glibc can do it.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_THRESHOLD, _LARGE_BYTES), (_TRIM_THRESHOLD, 2 * _LARGE_BYTES - 1), (_TOP_PAD, _TOP_PAD_BYTES))
    return all(mallopt(name, number) == 1 for name, number in settings)
