"""Plans from the rounded relaxation of `formulation.timed`, for budgets that are exceeded at many places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from remat_solver.engines.base import Engine, Limits, Outcome
from remat_solver.errors import EngineFailed
from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.timed import build_timed
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.base import Task
from remat_solver.strategies.fitting import EvictionRule

_REACH = 0.12
"""Of the time of recomputes that is proven necessary: ways back that take more were never worth it."""
_LEAST_BYTES = 2e-3
"""Of the room for values: smaller ones are not worth a decision."""
_APART = 3
"""Steps between two places at which memory is limited; what lies between follows."""
_PLACES_PER_ROUND = 20
_MOST_ROUNDS = 5
_MOST_COLUMNS = 4_000
"""With more, linear programs take seconds, in which rounds get further."""
_LIMIT_SHARE = 0.05
"""Of the time that is left, for each relaxation."""
_TOLERANCE = 1e-3
"""Of the budget: the relaxation may exceed it by so much where it has no row, since it is rounded anyway."""
_ROUNDINGS = (
    (0.1, EvictionRule(distance_power=0.0, input_share=0.25)),
    (0.2, EvictionRule(distance_power=0.5)),
    (0.4, EvictionRule(distance_power=0.0, input_share=0.25)),
    (0.3, EvictionRule(distance_power=0.5, input_share=0.25)),
)
"""Thresholds, and the rules that make what they give fit."""


class TimedRounding:
    """`relax`, then `roundings`.

    `peaks`: the worst places of the relaxation that knows the first one only. `prices[q]`: by how much time falls with
    each byte (in the program's units) that is free at step q, from the duals of the memory rows.
    """

    def __init__(self, task: Task, lifetimes: Lifetimes, engine: Engine, *, overhead_ns: float) -> None:
        self.task = task
        self.engine = engine
        pivot = simulate(lifetimes.graph, store_all_schedule(lifetimes.graph)).peak_step
        room = task.budget_bytes - lifetimes.graph.fixed_bytes
        self.model = build_timed(
            lifetimes, pivot, task.budget_bytes, reach_ns=_REACH * overhead_ns, least_bytes=_LEAST_BYTES * room
        )
        self.memory_rows = {pivot: self.model.add_memory_row(pivot)}
        self.peaks: list[int] = []
        self.x: Sequence[float] = ()
        self.prices: dict[int, float] = {}

    def relax(self) -> bool:
        """Solves the relaxation, with memory rows wherever it needs them. False if it is large or has no solution."""
        if self.model.program.column_count > _MOST_COLUMNS:
            return False
        for _ in range(_MOST_ROUNDS):
            outcome = self._solve()
            if outcome is None or outcome.x is None:
                return False
            self.x = outcome.x
            self.prices = {step: max(0.0, -outcome.row_duals[row]) for step, row in self.memory_rows.items()}
            places = peaks_above(self.model.in_use(self.x), self.task.budget_bytes * (1 + _TOLERANCE))
            if not places:
                return True
            self.peaks = self.peaks or places
            for step in places[:_PLACES_PER_ROUND]:
                self.memory_rows[step] = self.model.add_memory_row(step)
        return True

    def _solve(self) -> Outcome | None:
        program = replace(self.model.program, integer=[False] * self.model.program.column_count)
        limits = Limits(time_limit_s=_LIMIT_SHARE * self.task.remaining_s(), threads=self.task.options.threads)
        try:
            outcome = self.engine.solve(program, limits, should_stop=self.task.stop_requested)
        except EngineFailed:
            return None
        return outcome if outcome.termination == "optimal" else None

    def roundings(self) -> Iterator[tuple[list[int], EvictionRule]]:
        """Schedules that may exceed the budget, each with the rule that shall make it fit."""
        for threshold, rule in _ROUNDINGS:
            yield self.model.schedule(self.x, threshold), rule


def peaks_above(in_use: npt.ArrayLike, budget_bytes: float) -> list[int]:
    """The steps that exceed the budget, highest first, without those close to a higher one."""
    left = np.array(in_use, dtype=np.float64)
    found: list[int] = []
    while left[step := int(left.argmax())] > budget_bytes:
        found.append(step)
        left[max(0, step - _APART) : step + _APART + 1] = -np.inf
    return found


def stand_ins(prices: Mapping[int, float], count: int) -> list[int]:
    """So many of the steps, near which most of the price lies: each leaves the least sum of price times distance.

    Neighbours share what they demand: the next of the dearest steps says less than one that stands for a stretch of
    cheaper ones.
    """
    priced = np.array(sorted(step for step, price in prices.items() if price > 0), dtype=np.int64)
    weights = np.array([prices[step] for step in priced.tolist()])
    between = np.abs(priced[:, None] - priced[None, :]).astype(np.float64)
    nearest = np.full(len(priced), np.inf)
    found: list[int] = []
    for _ in range(min(count, len(priced))):
        left = np.minimum(nearest[:, None], between)
        best = int((weights @ left).argmin())
        nearest = left[:, best]
        found.append(int(priced[best]))
    return found
