"""Measured peaks are exact to the byte on the CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from remat.torch.peak import measure_peak, record_allocator
from remat_solver.errors import RematError

KIB = 1024


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8)


def test_the_peak_is_the_highest_sum_and_the_end_is_what_stays() -> None:
    def run() -> torch.Tensor:
        kept = _bytes(100 * KIB)
        first = _bytes(300 * KIB)
        del first
        second = _bytes(200 * KIB)
        del second
        return kept

    measured = measure_peak(run, "cpu")
    assert measured.peak_bytes_above_start == 400 * KIB
    assert measured.end_bytes_above_start == 100 * KIB
    assert measured.device == "cpu"


def test_freeing_what_was_there_before_the_start_makes_no_room() -> None:
    """In a process of its own: PyTorch remembers addresses from earlier sessions, with the sizes of that time."""
    code = """
import torch
from remat.torch.peak import measure_peak

held = [torch.empty(500 * 1024, dtype=torch.uint8)]

def run():
    held.clear()
    return torch.empty(200 * 1024, dtype=torch.uint8)

measured = measure_peak(run, "cpu")
print(measured.peak_bytes_above_start, measured.end_bytes_above_start)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(200 * KIB)] * 2


def test_temporary_memory_inside_an_op_is_seen() -> None:
    x = torch.randn(64, 64)
    measured = measure_peak(lambda: torch.nn.functional.gelu(x.t() @ x).sum(), "cpu")
    assert measured.peak_bytes_above_start >= 2 * 64 * 64 * 4
    assert measured.end_bytes_above_start == 4


def test_a_whole_training_step_adds_up() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    parameters = sum(p.numel() * 4 for p in model.parameters())
    x = torch.randn(32, 64)
    measured = measure_peak(lambda: model(x).sum().backward(), "cpu")
    assert measured.end_bytes_above_start == parameters
    assert measured.peak_bytes_above_start > parameters + 32 * 64 * 4


def test_an_error_in_the_run_passes_through_and_leaves_the_profiler_stopped() -> None:
    def run() -> None:
        raise ValueError("from the run")

    with pytest.raises(ValueError, match="from the run"):
        measure_peak(run, "cpu")
    assert measure_peak(lambda: _bytes(KIB), "cpu").peak_bytes_above_start == KIB


def test_a_profiler_that_is_already_running_is_named() -> None:
    with torch.autograd.profiler.profile(), pytest.raises(RematError, match="already running"):
        measure_peak(lambda: None, "cpu")


def test_marks_carry_the_clock_of_the_events() -> None:
    with record_allocator("mark:") as recording:
        before = _bytes(KIB)
        with torch.autograd.profiler.record_function("mark:a"):
            inside = _bytes(2 * KIB)
        del before, inside
    start, end = recording.marks["mark:a"]
    inside_sizes = [s for t, s in zip(recording.times_ns, recording.sizes_bytes, strict=True) if start <= t <= end]
    assert inside_sizes == [2 * KIB]
    assert recording.sizes_bytes == [KIB, 2 * KIB, -KIB, -2 * KIB]


def test_measuring_prints_nothing() -> None:
    """PyTorch's profiler greets, and complains when it first starts on another thread: not on our account."""
    code = """
import torch
from remat.torch.measure import measure
from remat.torch.peak import measure_peak
from remat.torch.signature import signature_of
from remat_solver.graph import Graph, Op
signature = signature_of(torch.ops.aten.relu.default, (torch.ones(3),), {})
measure(Graph(ops=(Op(name="relu", time_ns=0, signature=signature),)), cache=None)
measure_peak(lambda: torch.ones(3), "cpu")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.gpu
def test_the_peak_on_a_gpu() -> None:
    def run() -> torch.Tensor:
        kept = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        torch.empty(2**22, dtype=torch.uint8, device="cuda")
        return kept

    measured = measure_peak(run, "cuda")
    assert measured.peak_bytes_above_start == 2**20 + 2**22
    assert measured.end_bytes_above_start == 2**20
