"""A step's peak between any two moments at which a part of the model begins or ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import record_function

from remat.torch.peak import record_allocator

_MARK = "remat.moment."


class IntervalWatcher:
    """Cuts the step into intervals, in each of which it knows which parts hold something, as their user calls them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.held: list[tuple[str, ...]] = [()]
        self.peaks_bytes: list[int] = []
        self._start_bytes = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._start_bytes = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)

    def change(self, before: str | None, after: str | None) -> None:
        """A moment: from now on `after` holds memory, and one `before` no longer does."""
        held = list(self.held[-1])
        if before in held:
            held.remove(before)
        if self.device.type == "cuda":
            self._close_cuda_interval()
        else:
            with record_function(f"{_MARK}{len(self.held) - 1}"):
                pass
        self.held.append((*held, after) if after is not None else tuple(held))

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
