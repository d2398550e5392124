"""A lower bound on the time of recomputes, from many memory cuts at once and no integrality.

Where ops run several times, what counts is how memory is shared between many moments. A program with a slot at each of
these is too large to be solved in integers, and rounds that add two stages each do not get there. Its linear relaxation
with range cuts, however, rises with every slot, and is solved in seconds.

The moments are the first runs before which the best schedule recomputes something, and later those halfway between
them. Slots there assume no order of recomputations (proof scope "order"). At first only some are taken: a coarse model
shows cheaply which cuts matter in a finer one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

from remat_solver.strategies.relaxation import Relaxation

_FIRST_STAGES = 8
"""At most twice as many in the first model."""


class LinearBound:
    """Ever denser slots, which raise the bound of `relaxation`."""

    def __init__(self, relaxation: Relaxation, schedule: Sequence[int]) -> None:
        self.relaxation = relaxation
        self.levels = _denser_and_denser(busy_stages(schedule))

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


def _denser_and_denser(stages: list[int]) -> list[list[int]]:
    """Some of the stages, all of them, then those halfway between neighbours as well, and so on."""
    levels = [stages[:: max(1, len(stages) // _FIRST_STAGES)], stages]
    while levels[-1] != (denser := sorted({*levels[-1], *((a + b) // 2 for a, b in pairwise(levels[-1]))})):
        levels.append(denser)
    return levels
