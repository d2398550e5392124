"""What is measured of each contender: whether it trains the same, its peak, and its time beside the plain one's."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.peers.contenders import Contender
from remat.torch.peak import measure_peak

TRAINING_STEPS = 2
RESAMPLES = 2000
NEGLIGIBLE = 1e-4
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Training:
    """What some training steps left behind: losses, gradients of each step, and buffers at the end."""

    losses: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The median over rounds of this one's time over the plain one's, and a 95% interval (bootstrap) around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds in each round, of the wall and of this process's CPU."""

    wall_s: list[float]
    cpu_s: list[float]


def train(contender: Contender) -> Training:
    """A few optimizer steps, each with a seed of its own; the optimizer's state is dropped afterwards."""
    losses, gradients = [], []
    step = contender.step
    for seed in range(TRAINING_STEPS):
        torch.manual_seed(seed)
        step.model.zero_grad(set_to_none=True)
        losses.append(contender.run().detach())
        gradients += [parameter.grad.clone() for parameter in step.model.parameters() if parameter.grad is not None]
        if step.optimizer is not None:
            step.optimizer.step()
    if step.optimizer is not None:
        step.optimizer.state.clear()
    return Training(
        losses=tuple(losses), gradients=tuple(gradients), buffers=tuple(b.clone() for b in step.model.buffers())
    )


def are_equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors are equal, bit for bit."""
    return len(one) == len(other) and all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def largest_difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The largest difference between two lists of gradients: its norm as a share of the norm of its tensor.

    Next to the largest gradient some are nothing but rounding (of a bias before a normalisation): they count by that.
    """
    if len(one) != len(other):
        return float("inf")
    norms = [float(right.double().norm()) for right in other]
    least = NEGLIGIBLE * max(norms, default=0.0)
    differences = [
        float((left.double() - right.double()).norm()) / max(norm, least, TINY)
        for left, right, norm in zip(one, other, norms, strict=True)
    ]
    return max(differences, default=0.0)


def peak_bytes(contender: Contender) -> int:
    """Bytes of forward and backward above what lay there before; gradients count, weights and batch don't."""
    model = contender.step.model
    model.zero_grad(set_to_none=True)
    device = next(model.parameters()).device
    peak = measure_peak(contender.run, device).peak_bytes_above_start
    model.zero_grad(set_to_none=True)
    return peak


def time_interleaved(contenders: Sequence[Contender], rounds: int) -> dict[str, Times]:
    """Times of forward and backward of every contender, all of them once in each round, in a random order."""
    times = {contender.name: Times(wall_s=[], cpu_s=[]) for contender in contenders}
    shuffle = random.Random(0)
    for _ in range(rounds):
        for contender in shuffle.sample(list(contenders), len(contenders)):
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            contender.run()
            times[contender.name].cpu_s.append(time.process_time() - cpu_start)
            times[contender.name].wall_s.append(time.perf_counter() - wall_start)
            contender.step.model.zero_grad(set_to_none=True)
    return times


def ratio(seconds: Sequence[float], base: Sequence[float]) -> Ratio:
    """Compares what was taken in the same rounds."""
    ratios = [one / other for one, other in zip(seconds, base, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return Ratio(
        median=statistics.median(ratios), low=medians[int(0.025 * RESAMPLES)], high=medians[int(0.975 * RESAMPLES)]
    )
