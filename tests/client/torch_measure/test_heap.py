"""Freed memory stays in the process once it is asked to: the next block of that size needs no new pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAP = Path(__file__).parents[3] / "client/remat/torch/heap.py"
CODE = """
import resource, runpy, sys
heap = runpy.run_path(sys.argv[1])
if sys.argv[2] == "ask":
    assert heap["keep_freed_memory"]()
block = bytearray(b"x") * (64 * 2**20)
del block
with open("/proc/self/statm") as statm:
    print(int(statm.read().split()[1]) * resource.getpagesize())
"""


def _resident_bytes_after_freeing(mode: str) -> int:
    command = [sys.executable, "-c", CODE, str(HEAP), mode]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_freed_memory_stays_when_asked_for() -> None:
    kept, returned = _resident_bytes_after_freeing("ask"), _resident_bytes_after_freeing("leave")
    assert kept - returned > 48 * 2**20
