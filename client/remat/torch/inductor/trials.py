"""Trial steps: a step compiled in some way and run, for its peak, its results and its time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from remat.torch.both_ways import Outcome, forked_randomness, run_once, run_unmeasured
from remat.torch.inductor.partitioners import Backend
from remat.torch.inductor.rehearsal import without_kernels
from remat.torch.joint_capture import compiled_call
from remat.torch.progress import Show
from remat.torch.step import Step

SEED = 0
"""Of the noise that all trial steps draw, so that they can be compared, whatever is drawn between them."""
TIMED_ROUNDS = 7
"""How often each step is run for its time; the least counts."""

Call = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A compiled step that was run: what it left behind, and its peak with everything included."""

    call: Call
    outcome: Outcome
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all trials of one step have in common."""

    step: Step
    device: torch.device
    resident_bytes: int
    show: Show = nullcontext

    def run(self, backend: Backend, what: str = "a step") -> Trial:
        """Compiles (in a first step), then runs a second one and takes its peak. `what` is for who looks on."""
        with self.show(f"compiling {what}"):
            return self._run(backend)

    def _run(self, backend: Backend) -> Trial:
        call = compiled_call(self.step.model, backend, self.step.loss_fn)
        run_unmeasured(self.step, call, None)
        with forked_randomness(SEED):
            outcome = run_once(self.step, call, None)
        return Trial(call=call, outcome=outcome, peak_bytes=self.resident_bytes + outcome.peak_bytes_above_start)

    def rehearsed_peak(self, backend: Backend, what: str = "a step") -> int:
        """The peak that `run` would measure, at a fraction of its cost on the CPU."""
        if self.device.type != "cpu":
            return self.run(backend, what).peak_bytes
        with self.show(f"rehearsing {what}"), without_kernels():
            return self._run(backend).peak_bytes

    def seconds(self, calls: Sequence[Call]) -> list[float]:
        """What each compiled step takes, run in turns. On the CPU its own time, which other programs disturb least."""
        least = [math.inf] * len(calls)
        with self.show("timing compiled steps"):
            for position, call in list(enumerate(calls)) * TIMED_ROUNDS:
                started = self._now()
                run_unmeasured(self.step, call, None)
                least[position] = min(least[position], self._now() - started)
        return least

    def _now(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()
        torch.accelerator.synchronize(self.device)
        return time.perf_counter()
