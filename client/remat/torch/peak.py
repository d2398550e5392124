"""Peaks, measured: how many bytes the device's allocator held at most while something ran.

On the CPU the figure comes from the allocator's own events, as PyTorch's profiler records them, so it is
exact to the byte and includes temporary memory inside ops. On CUDA it is the caching allocator's
`max_memory_allocated`, whose blocks are multiples of 512 bytes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

from remat_solver.errors import RematError

_MEMORY_EVENT = "[memory]"
_KINETO_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"


@dataclass(frozen=True, kw_only=True)
class PeakMeasurement:
    """Bytes above what was allocated when the run began: at the highest, and when it ended."""

    peak_bytes_above_start: int
    end_bytes_above_start: int
    device: str


@dataclass(kw_only=True)
class AllocatorRecording:
    """Allocations (positive) and frees (negative) of the CPU allocator, in order, filled in when recording ends.

    `marks` are the times (ns, on the clock of `times_ns`) at which named `record_function` ranges began and ended.
    """

    times_ns: list[int] = field(default_factory=list)
    sizes_bytes: list[int] = field(default_factory=list)
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)


def measure_peak(run: Callable[[], object], device: torch.device | str) -> PeakMeasurement:
    """Calls `run` once and says how far it took the allocator of `device` above where it stood.

    What `run` returns is kept to the end of the measurement. On the CPU, memory that was allocated before the
    start and is freed by `run` still counts: the allocator does not know how large it was. Raises
    `RematError` if a profiler is already running on this thread (CPU only); whatever `run` raises passes through.
    """
    device = torch.device(device)
    gc.collect()
    if device.type == "cuda":
        return _measure_cuda_peak(run, device)
    with record_allocator() as recording:
        kept = run()
    del kept
    in_use = peak = 0
    for size in recording.sizes_bytes:
        in_use += size
        peak = max(peak, in_use)
    return PeakMeasurement(peak_bytes_above_start=peak, end_bytes_above_start=in_use, device=str(device))


def _measure_cuda_peak(run: Callable[[], object], device: torch.device) -> PeakMeasurement:
    torch.cuda.synchronize(device)
    start = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    kept = run()
    torch.cuda.synchronize(device)
    measurement = PeakMeasurement(
        peak_bytes_above_start=torch.cuda.max_memory_allocated(device) - start,
        end_bytes_above_start=torch.cuda.memory_allocated(device) - start,
        device=str(device),
    )
    del kept
    return measurement


@contextmanager
def record_allocator(marks_prefix: str = "") -> Iterator[AllocatorRecording]:
    """Records every allocation and free of the CPU allocator inside the block.

    With a prefix, `record_function` ranges whose names start with it become `marks`. The profiler's raw
    results are read, not its parsed events: parsing costs seconds for a step of thousands of ops.
    """
    if torch._C._autograd._profiler_enabled():
        raise RematError(
            "memory can't be measured: a profiler is already running on this thread.",
            hint="Let remat measure before the profiler starts, or after it stops.",
        )
    recording = AllocatorRecording()
    profiler = torch.autograd.profiler.profile(use_kineto=True, profile_memory=True)
    with ExitStack() as stack:
        with _quiet_kineto():
            stack.enter_context(profiler)
        yield recording
    _read_events(profiler, recording, marks_prefix)


def start_profiler() -> None:
    """Starts and stops the profiler once: it complains if its first session is not on the thread that loaded it."""
    with record_allocator():
        pass


def _read_events(profiler: torch.autograd.profiler.profile, recording: AllocatorRecording, marks_prefix: str) -> None:
    results = profiler.kineto_results
    assert results is not None
    sized: list[tuple[int, int]] = []
    for event in results.events():
        name = event.name()
        if name == _MEMORY_EVENT:
            if event.device_type() == torch._C._autograd.DeviceType.CPU:
                sized.append((event.start_ns(), event.nbytes()))  # type: ignore[attr-defined]  # torch's stub lacks it
        elif marks_prefix and name.startswith(marks_prefix):
            recording.marks[name] = (event.start_ns(), event.end_ns())
    sized.sort(key=lambda pair: pair[0])  # stable: events of one instant keep their order
    recording.times_ns.extend(time for time, _ in sized)
    recording.sizes_bytes.extend(size for _, size in sized)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Kineto prints two lines for every session unless told not to when it first starts."""
    if _KINETO_LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_KINETO_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        del os.environ[_KINETO_LOG_LEVEL]
