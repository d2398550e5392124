"""One step under a plan, with the peak between any two moments at which a region begins or ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import record_function

from remat.torch.allocation import main_device
from remat.torch.both_ways import run_unmeasured
from remat.torch.eager.region_call import RegionCall
from remat.torch.eager.regions import own_call
from remat.torch.peak import record_allocator
from remat.torch.step import Step

_MARK = "remat.moment."


class IntervalWatcher:
    """Cuts the step into intervals. After each moment it knows which regions hold what they saved."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.held: list[tuple[str, ...]] = [()]
        self.peaks_bytes: list[int] = []
        self._start_bytes = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._start_bytes = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)

    def entered(self, path: str) -> None:
        """A region's forward begins."""
        self._mark((*self.held[-1], path))

    def left(self, _path: str) -> None:
        """A region's forward has ended."""
        self._mark(self.held[-1])

    def recomputing(self, path: str) -> None:
        """A region runs again: its backward is next, and takes up what it saved."""
        self._mark(tuple(held for held in self.held[-1] if held != path))

    def _mark(self, held: tuple[str, ...]) -> None:
        if self.device.type == "cuda":
            self._close_cuda_interval()
        else:
            with record_function(f"{_MARK}{len(self.held) - 1}"):
                pass
        self.held.append(held)

    def _close_cuda_interval(self) -> None:
        self.peaks_bytes.append(torch.cuda.max_memory_allocated(self.device) - self._start_bytes)
        torch.cuda.reset_peak_memory_stats(self.device)

    def run(self, run: Callable[[], Any]) -> None:
        """Calls `run` and fills in the intervals' peaks: bytes above what was allocated at the start."""
        if self.device.type == "cuda":
            run()
            self._close_cuda_interval()
            return
        with record_allocator(_MARK) as recording:
            run()
        moments = [recording.marks[f"{_MARK}{number}"][0] for number in range(len(self.held) - 1)]
        in_use = 0
        peak = 0
        events = list(zip(recording.times_ns, recording.sizes_bytes, strict=True))
        position = 0
        for moment in [*moments, None]:
            peak = in_use
            while position < len(events) and (moment is None or events[position][0] < moment):
                in_use += events[position][1]
                peak = max(peak, in_use)
                position += 1
            self.peaks_bytes.append(peak)


def measure_intervals(step: Step, calls: dict[str, RegionCall]) -> list[tuple[int, tuple[str, ...]]]:
    """Runs the step as `calls` stand; for each interval its peak above the start, and the regions held in it."""
    watcher = IntervalWatcher(main_device(step.model.parameters()))
    for call in calls.values():
        call.watcher = watcher
    try:
        watcher.run(lambda: run_unmeasured(step, own_call(step.model), step.loss_fn))
    finally:
        for call in calls.values():
            call.watcher = None
    return list(zip(watcher.peaks_bytes, watcher.held, strict=True))
