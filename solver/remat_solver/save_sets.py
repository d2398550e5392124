"""What to save inside regions that are run again as a whole: the problem behind eager checkpointing, solved exactly.

A step runs its regions in some order, forward and then backward. A region that is *recomputed* keeps its inputs and
the results of the ops that were chosen to be saved; right before its first backward op all its other ops run again,
which takes some time beside theirs.
A region that is *left alone* keeps whatever its backward reads, and runs nothing again. With x[r,o] = 1 where the
result of op o of region r is saved, and y[r] = 1 where region r is left alone:

    minimise    sum over r, o of time[r,o] * (1 - x[r,o] - y[r]) + sum over r of overhead[r] * (1 - y[r])
    subject to  x[r,o] + y[r] <= 1
                x[r,o] = 0                  where op o may not be saved
                x[r,o] <= x[r,p]            for random ops o before p of one region
                y[r] = 1                    where region r may not be recomputed
                base[k] + sum over r held in k of (sum over o of size[r,o] * x[r,o] + kept[r] * y[r]) <= budget

for every interval k between two moments at which a region begins or ends, forward or backward. base[k] is the peak
in the interval when nothing is saved and no region is left alone. Random ops must be a suffix: a recompute starts
from the generator state at the region's entry, so skipping one random op would hand its numbers to the next.

Memory only grows with what is saved. So a budget has a plan if, and only if, saving nothing fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from remat_solver.engines import engine_named
from remat_solver.engines.base import Limits, MixedIntegerProgram
from remat_solver.errors import InfeasibleBudget


@dataclass(frozen=True, kw_only=True)
class RegionOp:
    """An op of a region: what running it again costs, and what saving its result does."""

    time_ns: int
    size_bytes: int
    savable: bool = True
    random: bool = False


@dataclass(frozen=True, kw_only=True)
class Region:
    """Ops in the order in which they run. `kept_bytes` is what the region holds if it is left alone.

    `overhead_ns` is what running it again takes beside its ops, whatever is saved.
    """

    ops: tuple[RegionOp, ...]
    kept_bytes: int
    overhead_ns: int = 0
    recomputable: bool = True

    @property
    def time_ns(self) -> int:
        """The time of running it again with nothing saved."""
        return self.recompute_ns(frozenset())

    def recompute_ns(self, saved: Collection[int] | None) -> int:
        """The time of running it again where these ops are saved; None leaves it alone."""
        if saved is None:
            return 0
        return self.overhead_ns + sum(op.time_ns for position, op in enumerate(self.ops) if position not in saved)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A stretch of the step: its peak when nothing is saved, and the regions whose savings are in memory then."""

    base_bytes: int
    held: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SaveSets:
    """The answer: for each region the ops to save (by position), or None where it is left alone.

    `recompute_ns` is the time of all that runs again, `bound_ns` the proven least. `peak_bytes` is the model's.
    """

    saved: tuple[frozenset[int] | None, ...]
    recompute_ns: int
    bound_ns: int
    peak_bytes: int


def predicted_peak(
    regions: Sequence[Region], intervals: Sequence[Interval], saved: Sequence[frozenset[int] | None]
) -> int:
    """The highest interval under a choice, in bytes."""
    held = [_held_bytes(region, choice) for region, choice in zip(regions, saved, strict=True)]
    return max(interval.base_bytes + sum(held[region] for region in interval.held) for interval in intervals)


def solve_save_sets(
    regions: Sequence[Region],
    intervals: Sequence[Interval],
    *,
    budget_bytes: int,
    engine: str = "cbc",
    time_limit_s: float = 30.0,
    gap: float = 1e-3,
) -> SaveSets:
    """The choice with the least recomputation whose every interval is within `budget_bytes`.

    gap: stop once proven within this share of the time of running all regions again. Where the time limit comes
    before any incumbent, nothing is saved, which always fits. Raises `InfeasibleBudget`, and `EngineError`s.
    """
    least = tuple(frozenset[int]() if region.recomputable else None for region in regions)
    least_peak = predicted_peak(regions, intervals, least)
    if least_peak > budget_bytes:
        raise InfeasibleBudget(
            f"no plan fits in {budget_bytes} bytes: with every region recomputed the step takes {least_peak}.",
            hint="Raise the budget.",
            budget_bytes=budget_bytes,
            proven_infeasible_below_bytes=least_peak,
            known_feasible_bytes=least_peak,
            proof_scope="order",
        )
    model = _SaveSetProgram(regions, intervals, budget_bytes)
    total_ns = sum(region.time_ns for region in regions)
    limits = Limits(time_limit_s=time_limit_s, absolute_gap=gap * total_ns / NS_PER_UNIT)
    outcome = engine_named(engine).solve(model.program, limits)
    saved = least if outcome.x is None else model.read(outcome.x)
    recompute_ns = sum(region.recompute_ns(choice) for region, choice in zip(regions, saved, strict=True))
    bound_ns = math.floor(outcome.bound * NS_PER_UNIT) if math.isfinite(outcome.bound) else 0
    return SaveSets(
        saved=saved,
        recompute_ns=recompute_ns,
        bound_ns=max(0, min(bound_ns, recompute_ns)),
        peak_bytes=predicted_peak(regions, intervals, saved),
    )


NS_PER_UNIT = 1000
"""Times enter the program in microseconds."""
_BYTES_PER_UNIT = 1024
"""Sizes enter the program in KiB, rounded up, so that rounding never breaks a budget."""


class _SaveSetProgram:
    """The program above; columns only for what may be chosen."""

    def __init__(self, regions: Sequence[Region], intervals: Sequence[Interval], budget_bytes: int) -> None:
        self.regions = regions
        self.program = MixedIntegerProgram(constant=sum(r.time_ns for r in regions if r.recomputable) / NS_PER_UNIT)
        self.alone: list[int | None] = []
        self.saves: list[dict[int, int]] = []
        for region in regions:
            self._add_region(region)
        for interval in intervals:
            self._add_interval(interval, budget_bytes)

    def read(self, x: Sequence[float]) -> tuple[frozenset[int] | None, ...]:
        """The choice that a solution stands for."""
        return tuple(
            None
            if alone is None or x[alone] > 0.5
            else frozenset(position for position, column in saves.items() if x[column] > 0.5)
            for alone, saves in zip(self.alone, self.saves, strict=True)
        )

    def _add_region(self, region: Region) -> None:
        if not region.recomputable:
            self.alone.append(None)
            self.saves.append({})
            return
        alone = self.program.add_column(cost=-region.time_ns / NS_PER_UNIT)
        saves = {
            position: self.program.add_column(cost=-op.time_ns / NS_PER_UNIT)
            for position, op in enumerate(region.ops)
            if op.savable and (op.time_ns or op.random)
        }
        for column in saves.values():
            self.program.add_row([column, alone], [1.0, 1.0], lower=-math.inf, upper=1.0)
        random = [position for position, op in enumerate(region.ops) if op.random]
        for earlier, later in itertools.pairwise(random):
            if earlier in saves and later in saves:
                self.program.add_row([saves[earlier], saves[later]], [1.0, -1.0], lower=-math.inf, upper=0.0)
            elif earlier in saves:
                self._forbid([saves[position] for position in random if position <= earlier and position in saves])
        self.alone.append(alone)
        self.saves.append(saves)

    def _forbid(self, columns: list[int]) -> None:
        for column in columns:
            self.program.upper[column] = 0.0

    def _add_interval(self, interval: Interval, budget_bytes: int) -> None:
        columns, coefficients = [], []
        base = interval.base_bytes
        for index in interval.held:
            region, alone = self.regions[index], self.alone[index]
            if alone is None:
                base += region.kept_bytes
                continue
            sizes = {column: region.ops[position].size_bytes for position, column in self.saves[index].items()}
            for column, size_bytes in {alone: region.kept_bytes, **sizes}.items():
                if size_bytes:
                    columns.append(column)
                    coefficients.append(float(-(-size_bytes // _BYTES_PER_UNIT)))
        if columns:
            room = (budget_bytes - base) // _BYTES_PER_UNIT
            self.program.add_row(columns, coefficients, lower=-math.inf, upper=float(room))


def _held_bytes(region: Region, choice: frozenset[int] | None) -> int:
    if choice is None:
        return region.kept_bytes
    return sum(region.ops[position].size_bytes for position in choice)
