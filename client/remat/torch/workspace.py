"""Workspace: the memory that an op takes while it runs, beyond the results that stay."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from remat.torch.peak import AllocatorRecording, record_allocator
from remat.torch.synthetic import PreparedCall

_MARK = "remat-op:"


@dataclass(kw_only=True)
class WorkspaceMeter:
    """Measures calls one after the other; `workspace_bytes` maps each key to the result once the block is over.

    On the CPU all of them share one profiler session, since starting the profiler is slow.
    """

    workspace_bytes: dict[str, int] = field(default_factory=dict)

    def measure(self, key: str, call: PreparedCall, device: torch.device) -> None:
        """Runs the call once (it has run before, so that one-time allocations are over)."""
        if device.type == "cuda":
            self.workspace_bytes[key] = _cuda_workspace(call, device)
            return
        with torch.autograd.profiler.record_function(_MARK + key):
            result = call.run()
        del result


@contextmanager
def workspace_meter() -> Iterator[WorkspaceMeter]:
    """A meter to use inside the block."""
    meter = WorkspaceMeter()
    with record_allocator(_MARK) as recording:
        yield meter
    meter.workspace_bytes |= _cpu_workspaces(recording)


def _cpu_workspaces(recording: AllocatorRecording) -> Mapping[str, int]:
    workspaces = {}
    for mark, (start, end) in recording.marks.items():
        first = bisect.bisect_left(recording.times_ns, start)
        last = bisect.bisect_right(recording.times_ns, end)
        workspaces[mark.removeprefix(_MARK)] = beyond_what_stays(recording.sizes_bytes[first:last])
    return workspaces


def beyond_what_stays(sizes_bytes: Iterable[int]) -> int:
    """Highest running sum of allocations and frees, less their total."""
    in_use = peak = 0
    for size in sizes_bytes:
        in_use += size
        peak = max(peak, in_use)
    return peak - max(in_use, 0)


def _cuda_workspace(call: PreparedCall, device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = call.run()
    torch.cuda.synchronize(device)
    workspace = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    del result
    return workspace
