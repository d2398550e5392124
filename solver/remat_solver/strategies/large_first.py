"""First schedules for budgets near the floor, found from their end: large values first, then the small ones.

Evictions decide about one value at a time, going forwards; near the floor they end where what an op reads can't be
brought together any more. Seen from the end (`backward_walk`) a schedule is a walk over sets of wanted values, which
knows at each moment what must be in memory and nothing besides. Here one such walk is looked for: of all states known
the one at the earliest stage is taken up next, and of these the one that wants the fewest bytes, so that the walk goes
straight to the first op as long as memory allows it, recomputes where it is blocked, and turns back where that leads
nowhere.

What makes the search small is to take only large values for wanted (`only_large`). The walk then fits as far as these
are concerned. The small ones, kept throughout, may exceed the budget by some percent, which evictions that prefer small
values take away again. With a coarser view there are fewer states, with a finer one less is left to evict, so that
several are tried, the coarsest first. No optimality is claimed, and a failure proves nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from remat_solver.formulation.lifetimes import Lifetimes, only_large
from remat_solver.simulate import simulate
from remat_solver.strategies.backward_walk import State, Walk, holds_any
from remat_solver.strategies.fitting import EvictionRule, fit_schedule

RESOLUTIONS = (0.05, 0.03, 0.02, 0.01)
"""Values count as large from this share of the budget on."""
_SPARES = (0.02, 0.01, 0.0)
"""Of the budget, left for the small ones."""
_RULES = (
    EvictionRule(size_power=-0.5, distance_power=0.5),
    EvictionRule(size_power=0.5),
    EvictionRule(size_power=0.0, distance_power=0.5),
)
_MOST_EXCESS = 0.2
"""Of the budget: what evictions of small values are trusted to take away."""
_PATIENCE = 1.0
_EFFORTS = (5_000, 70_000)
"""Steps for each of the walks. Those that find anything need fewer."""


def views(lifetimes: Lifetimes, budget_bytes: int) -> list[Lifetimes]:
    """Coarser views of the graph, by `RESOLUTIONS`, the coarsest first; those that differ and leave anything out."""
    found = [lifetimes]
    for share in reversed(RESOLUTIONS):
        view = only_large(lifetimes, share * budget_bytes)
        if view.is_lasting != found[-1].is_lasting:
            found.append(view)
    return found[:0:-1]


def first_schedules(
    lifetimes: Lifetimes, budget_bytes: int, *, should_stop: Callable[[], bool]
) -> Iterator[list[int] | None]:
    """Schedules that fit the budget, those of short searches first. None after each try, for whoever wants to pause."""
    rooms = [budget_bytes - int(spare * budget_bytes) for spare in _SPARES]
    walks = [(view, room) for view in views(lifetimes, budget_bytes) for room in rooms]
    for effort in _EFFORTS:
        tired = []
        for view, room in walks:
            walk = StraightWalk(view, room, effort, should_stop)
            outline = walk.schedule()
            if outline is not None:
                yield from _made_to_fit(lifetimes, outline, budget_bytes, should_stop)
            elif walk.steps > effort:
                tired.append((view, room))
            yield None
        walks = tired


def _made_to_fit(
    lifetimes: Lifetimes, outline: list[int], budget_bytes: int, should_stop: Callable[[], bool]
) -> Iterator[list[int]]:
    if simulate(lifetimes.graph, outline).peak_bytes > (1 + _MOST_EXCESS) * budget_bytes:
        return
    for rule in _RULES:
        fitted = fit_schedule(lifetimes, outline, budget_bytes, rule=rule, should_stop=should_stop, patience=_PATIENCE)
        if fitted is not None:
            yield fitted


_Place = tuple[int, int]
"""(how many ops have run for the first time, the wanted values as a set of bits)."""


class StraightWalk(Walk):
    """Looks for one walk back to the first op."""

    def schedule(self) -> list[int] | None:
        """The runs of a walk that arrives, in order of time; None if none was found within the effort."""
        start = len(self.runs)
        queue: list[tuple[int, int, int]] = [(start, 0, 0)]
        came: dict[_Place, tuple[int, _Place] | None] = {(start, 0): None}
        taken_up: list[list[int]] = [[] for _ in range(start + 1)]
        while queue:
            begun, in_use, wanted = heapq.heappop(queue)
            if not begun:
                return _runs_to((begun, wanted), came)
            if holds_any(wanted, taken_up[begun]):
                continue
            taken_up[begun].append(wanted)
            if self.is_tired(len(taken_up[begun])):
                return None
            for earlier_begun, op, earlier in self._steps(begun, (in_use, wanted)):
                place = earlier_begun, earlier[1]
                if place not in came:
                    came[place] = op, (begun, wanted)
                    heapq.heappush(queue, (earlier_begun, *earlier))
        return None

    def _steps(self, begun: int, state: State) -> Iterator[tuple[int, int, State]]:
        """What can be the last run before a state: how many ops have begun before it, the op, and the state before."""
        stage = begun - 1
        first = self.step_back(stage, stage, state)
        if first is not None:
            yield stage, stage, first
            if not self.runs[stage].reads & ~state[1]:
                return
        for op, earlier in self.recomputes(stage, state):
            yield begun, op, earlier


def _runs_to(place: _Place, came: dict[_Place, tuple[int, _Place] | None]) -> list[int]:
    runs = []
    step = came[place]
    while step is not None:
        op, place = step
        runs.append(op)
        step = came[place]
    return runs
