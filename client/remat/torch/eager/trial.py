"""One step under a plan, with the peak between any two moments at which a region begins or ends."""

from __future__ import annotations

from remat.torch.allocation import main_device
from remat.torch.both_ways import run_unmeasured
from remat.torch.eager.region_call import RegionCall
from remat.torch.eager.regions import own_call
from remat.torch.intervals import IntervalWatcher
from remat.torch.step import Step


class _RegionWatcher(IntervalWatcher):
    """Knows after each moment which regions hold what they saved."""

    def entered(self, path: str) -> None:
        """A region's forward begins."""
        self.change(None, path)

    def left(self, _path: str) -> None:
        """A region's forward has ended."""
        self.change(None, None)

    def recomputing(self, path: str) -> None:
        """A region runs again: its backward is next, and takes up what it saved."""
        self.change(path, None)


def measure_intervals(step: Step, calls: dict[str, RegionCall]) -> list[tuple[int, tuple[str, ...]]]:
    """Runs the step as `calls` stand; for each interval its peak above the start, and the regions held in it."""
    watcher = _RegionWatcher(main_device(step.model.parameters()))
    for call in calls.values():
        call.watcher = watcher
    try:
        watcher.run(lambda: run_unmeasured(step, own_call(step.model), step.loss_fn))
    finally:
        for call in calls.values():
            call.watcher = None
    return list(zip(watcher.peaks_bytes, watcher.held, strict=True))
