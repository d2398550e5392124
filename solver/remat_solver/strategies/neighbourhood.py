"""Large-neighbourhood search: re-optimise a few ops at a time around the best schedule so far.

Shaw (CP 1998) for the idea. Which ops: a recompute to get rid of, those whose values are idle in
memory over the same stretch (they could make room for it), those recomputed there, and what they read.
Deterministic by seed; the size of the neighbourhood follows what the engine manages in a slice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from remat_solver.engines.base import Engine, Limits
from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.neighbourhood import build_neighbourhood
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
        outcome = self.engine.solve(model.program, Limits(time_limit_s=self.slice_s), should_stop=should_stop)
        self.size *= 1.04 if outcome.termination == "optimal" else 0.85
        self.size = min(max(self.size, _SMALLEST), _LARGEST)
        if outcome.x is None:
            return False
        schedule = model.schedule(outcome.x)
        is_better = self._offer(best, schedule, should_stop)
        self.gains += is_better
        return is_better

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
        chosen = {target}
        wanted = int(self.size)
        nearby = [op for op, a, b in spans.recomputes if a < end and b > start]
        idle = [op for op, a, b in spans.idle if min(b, end) - max(a, start) > 0]
        self.random.shuffle(nearby)
        self.random.shuffle(idle)
        for index in range(max(len(nearby), len(idle))):
            for pool in (nearby, idle):
                if index < len(pool) and len(chosen) < wanted:
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
