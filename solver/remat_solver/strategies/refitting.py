"""Iterated greedy: take a few recomputes out of the best schedule, and make it fit again by another rule.

Ruiz and Stützle (EJOR 2007) for the idea. The recomputes that are taken out lie near each other, so
that what they cost can be paid elsewhere; the rule of eviction is drawn anew each time. The first
tries start from the store-all schedule. Deterministic by seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.simulate import store_all_schedule
from remat_solver.strategies.fitting import EvictionRule, fit_schedule
from remat_solver.strategies.incumbent import Incumbent

_FIRST_RULES = (
    EvictionRule(distance_power=0.5, input_share=0.25),
    EvictionRule(size_power=0.3),
    EvictionRule(distance_power=0.0, input_share=0.5),
    EvictionRule(size_power=0.3, distance_power=1.5),
)
_TRIES_FROM_SCRATCH = 10
_WIDTHS = (2, 5, 10, 20, 40)
_INPUT_SHARES = (0.0, 0.25, 0.5)
_SHARES = (0.2, 0.5, 1.0)
_WORTH_MERGING = 0.03
_PATIENCE = 1.0


class Refitting:
    """Draws rules and schedules to fit; keeps its state between calls of `improve`."""

    def __init__(self, lifetimes: Lifetimes, *, seed: int = 0) -> None:
        self.lifetimes = lifetimes
        self.random = random.Random(seed)
        self.tries = 0

    def improve(self, best: Incumbent, *, should_stop: Callable[[], bool]) -> bool:
        """One try. True if the incumbent got faster."""
        rule = self._draw_rule()
        base = self._choose_base(best)
        self.tries += 1
        fitted = fit_schedule(
            self.lifetimes, base, best.budget_bytes, rule=rule, should_stop=should_stop, patience=_PATIENCE
        )
        if fitted is None or not best.is_promising(fitted, slack=_WORTH_MERGING):
            return False
        return best.offer(fitted, should_stop=should_stop)

    def _draw_rule(self) -> EvictionRule:
        if self.tries < len(_FIRST_RULES):
            return _FIRST_RULES[self.tries]
        return EvictionRule(
            size_power=self.random.uniform(0.1, 1.3),
            distance_power=self.random.uniform(0.0, 1.5),
            noise=0.4,
            seed=self.tries,
            input_share=_INPUT_SHARES[self.tries % len(_INPUT_SHARES)],
        )

    def _choose_base(self, best: Incumbent) -> Sequence[int]:
        if best.schedule is None or self.tries < _TRIES_FROM_SCRATCH:
            return store_all_schedule(self.lifetimes.graph)
        recomputes = _recompute_steps(best.schedule)
        if not recomputes:
            return best.schedule
        centre = self.random.randrange(len(recomputes))
        width = self.random.choice(_WIDTHS)
        share = self.random.choice(_SHARES)
        near = recomputes[max(0, centre - width) : centre + width]
        dropped = {step for step in near if self.random.random() < share}
        return [op for step, op in enumerate(best.schedule) if step not in dropped]


def _recompute_steps(schedule: Sequence[int]) -> list[int]:
    seen: set[int] = set()
    steps = []
    for step, op in enumerate(schedule):
        if op in seen:
            steps.append(step)
        seen.add(op)
    return steps
