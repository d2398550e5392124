"""Large-neighbourhood search: re-optimise a few ops at a time around the best schedule so far.

Shaw (CP 1998) for the idea. Which ops: a recompute to get rid of, those whose values are idle in
memory over the same stretch (they could make room for it), those recomputed there, and what they read.
Deterministic by seed; the size of the neighbourhood follows what the engine manages in a slice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from remat_solver.engines.base import Engine, Limits, MixedIntegerProgram, Outcome
from remat_solver.errors import EngineFailed
from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.neighbourhood import build_neighbourhood
from remat_solver.simulate import simulate
from remat_solver.strategies.fitting import RULES, fit_schedule
from remat_solver.strategies.incumbent import Incumbent

_SMALLEST, _LARGEST = 6, 120


class NeighbourhoodSearch:
    """Improves an incumbent step by step. Keeps its state between calls of `improve`."""

    def __init__(self, lifetimes: Lifetimes, engine: Engine, *, seed: int = 0) -> None:
        self.lifetimes = lifetimes
        self.engine = engine
        self.random = random.Random(seed)
        self.size = 20.0
        self.slice_s = 0.4
        self.tries = 0
        self.gains = 0

    def improve(self, best: Incumbent, *, should_stop: Callable[[], bool]) -> bool:
        """One neighbourhood of the best schedule; True if the incumbent got faster."""
        assert best.schedule is not None
        self.tries += 1
        free = self._choose_ops(best.schedule)
        model = build_neighbourhood(self.lifetimes, best.schedule, free, best.budget_bytes)
        if model.contradiction or not model.program.column_count:
            self.size = min(self.size * 1.1, _LARGEST)
            return False
        outcome = self._solve(model.program, should_stop)
        self._adapt(outcome.termination == "optimal")
        if outcome.x is None:
            return False
        schedule = model.schedule(outcome.x)
        is_better = self._offer(best, schedule, should_stop)
        self.gains += is_better
        return is_better

    def approach(self, best: Incumbent, *, should_stop: Callable[[], bool]) -> bool:
        """One neighbourhood of the schedule that exceeds the budget least; True if it now exceeds it by less."""
        assert best.nearest is not None
        self.tries += 1
        free = self._choose_around_excess(best)
        model = build_neighbourhood(self.lifetimes, best.nearest, free, best.budget_bytes, is_elastic=True)
        if model.contradiction or not model.program.column_count:
            return False
        outcome = self._solve(model.program, should_stop)
        self._adapt(outcome.termination == "optimal")
        if outcome.x is None:
            return False
        return best.come_nearer(model.schedule(outcome.x), should_stop=should_stop)

    def _choose_around_excess(self, best: Incumbent) -> set[int]:
        """About `size` ops whose values wait in memory at a random step above the budget, or are recomputed near it."""
        assert best.nearest is not None
        timeline = simulate(self.lifetimes.graph, best.nearest).timeline_bytes
        over = [step for step, in_use in enumerate(timeline) if in_use > best.budget_bytes]
        if not over:
            return set()
        step = self.random.choice(over)
        spans = _Spans(self.lifetimes, best.nearest)
        idle = [op for op, start, end in spans.idle if start < step < end]
        near = [op for op, _, end in spans.recomputes if abs(end - step) < 3 * self.size]
        return self._mix(idle, near, set())

    def _solve(self, program: MixedIntegerProgram, should_stop: Callable[[], bool]) -> Outcome:
        """A slice of the engine's time; an engine that fails has found nothing."""
        try:
            return self.engine.solve(program, Limits(time_limit_s=self.slice_s), should_stop=should_stop)
        except EngineFailed:
            return Outcome(termination="no_solution", bound=-math.inf)

    def _adapt(self, is_solved: bool) -> None:
        self.size *= 1.04 if is_solved else 0.85
        self.size = min(max(self.size, _SMALLEST), _LARGEST)

    def _offer(self, best: Incumbent, schedule: Sequence[int], should_stop: Callable[[], bool]) -> bool:
        if best.fits(schedule):
            return best.offer(schedule, should_stop=should_stop)
        rule = RULES[self.tries % len(RULES)]
        fitted = fit_schedule(self.lifetimes, schedule, best.budget_bytes, rule=rule, should_stop=should_stop)
        return fitted is not None and best.offer(fitted, should_stop=should_stop)

    def _choose_ops(self, schedule: Sequence[int]) -> set[int]:
        """About `size` ops around a random recompute."""
        spans = _Spans(self.lifetimes, schedule)
        if not spans.recomputes:
            return set()
        target, start, end = self.random.choice(spans.recomputes)
        nearby = [op for op, a, b in spans.recomputes if a < end and b > start]
        idle = [op for op, a, b in spans.idle if min(b, end) - max(a, start) > 0]
        return self._mix(nearby, idle, {target})

    def _mix(self, first: list[int], second: list[int], chosen: set[int]) -> set[int]:
        """`chosen`, with ops from both lists in turn, at random, and with what they read, up to about `size`."""
        self.random.shuffle(first)
        self.random.shuffle(second)
        for index in range(max(len(first), len(second))):
            for pool in (first, second):
                if index < len(pool) and len(chosen) < int(self.size):
                    chosen.add(pool[index])
                    chosen.update(self._inputs(pool[index]))
        return {op for op in chosen if self.lifetimes.may_rerun[op]}

    def _inputs(self, op: int) -> list[int]:
        return [self.lifetimes.graph.producer[value] for value in self.lifetimes.reads[op]]


class _Spans:
    """Where a schedule recomputes, and where it keeps values that it does not use.

    `recomputes`: (op, its run before, its recompute), in steps. `idle`: (op, from, to) for values that
    wait in memory for more than one step.
    """

    def __init__(self, lifetimes: Lifetimes, schedule: Sequence[int]) -> None:
        self.recomputes: list[tuple[int, int, int]] = []
        self.idle: list[tuple[int, int, int]] = []
        latest: dict[int, int] = {}
        touched: dict[int, int] = {}
        producer = lifetimes.graph.producer
        for step, op in enumerate(schedule):
            for value in lifetimes.reads[op]:
                if step - touched[value] > 2 and lifetimes.may_rerun[producer[value]]:
                    self.idle.append((producer[value], touched[value], step))
                touched[value] = step
            if op in latest:
                self.recomputes.append((op, latest[op], step))
            latest[op] = step
            for value in lifetimes.writes[op]:
                touched[value] = step
