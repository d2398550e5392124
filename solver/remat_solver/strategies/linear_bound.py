"""A lower bound on the time of recomputes, from many memory cuts at once and no integrality.

Where ops run several times, what counts is how memory is shared between many moments. A program with a slot at each of
these is too large to be solved in integers, and rounds that add two stages each do not get there. Its linear relaxation
with range cuts, however, rises with every slot, and is solved in seconds.

The moments are first runs, so that slots there assume no order of recomputations (proof scope "order"). Those of the
ops with the largest working sets, beside which little else fits, say most. Those before which the best schedule
recomputes something divide the time in which ops run again. At first only some of both are taken: a coarse model shows
cheaply which cuts matter in a finer one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from remat_solver.bounds import tightest_first
from remat_solver.strategies.relaxation import Relaxation

_FIRST_STAGES = 12
"""Of either kind, in the first model."""


class LinearBound:
    """Ever denser slots, which raise the bound of `relaxation`."""

    def __init__(self, relaxation: Relaxation, schedule: Sequence[int]) -> None:
        self.relaxation = relaxation
        self.levels = list(_denser_and_denser(busy_stages(schedule), tightest_first(relaxation.graph)))

    def raise_for(self, seconds: float, *, enough_ns: float) -> bool:
        """Raises the bound for so long, until it is `enough_ns`, or until nothing is left to add. True if it rose."""
        before_ns = self.relaxation.bound_ns
        stop_s = time.monotonic() + seconds
        while self.levels and self.relaxation.bound_ns < enough_ns:
            if not self.relaxation.relax([(stage, stage) for stage in self.levels[0]], stop_s=stop_s):
                break
            del self.levels[0]
        return self.relaxation.bound_ns > before_ns


def busy_stages(schedule: Sequence[int]) -> list[int]:
    """The ops before whose first run something is recomputed, ascending."""
    stages: list[int] = []
    seen: set[int] = set()
    is_busy = False
    for op in schedule:
        if op in seen:
            is_busy = True
        elif is_busy:
            stages.append(op)
            is_busy = False
        seen.add(op)
    return stages


def _denser_and_denser(busy: Sequence[int], tightest: Sequence[int]) -> Iterator[list[int]]:
    """Some of the busy stages and of the tightest ops; with these others, twice as many of both, and so on to all."""
    stages: set[int] = set()
    count = _FIRST_STAGES
    while count < 2 * len(tightest):
        stages |= {*_spread(busy, count), *tightest[:count]}
        yield sorted(stages)
        count *= 2


def _spread(stages: Sequence[int], count: int) -> Sequence[int]:
    """So many of the stages, the first and the last among them; all if there are no more."""
    if count >= len(stages):
        return stages
    return [stages[position * (len(stages) - 1) // (count - 1)] for position in range(count)]
