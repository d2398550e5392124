"""A lower bound on the time of recomputes, from all schedules followed back together.

States and steps are those of `backward_walk`, and each state has the least time of recomputes after it. Where budgets
leave room for a few values only, ops run many times over, and relaxations of a MIP (which count an op once per
interval) stay far below what that costs; the sets of wanted values, however, remain few enough to follow.

Only the cheapest are followed one by one. From one first run to the next states are taken up in order of time, and once
they cost more than the cheapest and a *window*, all that are left are merged into one state that wants nothing, at
the time of the cheapest of them: whatever leads to any of them leads there for no more time. (This is a relaxed
decision diagram, after Andersen, Hadzic, Hooker and Tiedemann, 2007.) So the least time with which a walk arrives is a
lower bound for any window, and with a window that merges nothing it is the least time itself.

The first run of the stage is the only step taken if it reads nothing but wanted values and is not blocked: see
`backward_walk`; leaving out runs takes no time, so that this holds for times too. Else only those states are dropped
that want what another one wants, and more, at no less time. Nothing is assumed on the order of recomputes: proof scope
"order".
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.simulate import simulate
from remat_solver.strategies.backward_walk import Walk
from remat_solver.strategies.base import Task
from remat_solver.strategies.wanted_sets import WantedSets

_FIRST_WINDOW = 0.01
"""Of the store-all time."""
_WINDOW_GROWTH = 1.5


@dataclass(frozen=True, kw_only=True)
class Reach:
    """With how much time of recomputes a walk arrives, and its runs in order of time.

    `schedule` is None if it passes a merged state. If it is not, it fits and no schedule takes less time.
    """

    recompute_ns: int
    schedule: tuple[int, ...] | None


_TimedState = tuple[int, int, int]
"""(time of the recomputes after it in ns, bytes of the wanted values, the wanted values as a set of bits)."""


def least_recompute_time(
    lifetimes: Lifetimes, budget_bytes: int, *, window_ns: int, effort: int, should_stop: Callable[[], bool]
) -> Reach | None:
    """A bound on the recomputes of every schedule within the budget; None if the effort was used up.

    None as well if no walk arrives, which `backward_walk` shows sooner. `effort`: the number of states to take up.
    """
    walk = _TimedWalk(lifetimes, budget_bytes, effort, should_stop)
    states: list[_TimedState] = [(0, 0, 0)]
    for stage in range(len(lifetimes.graph) - 1, -1, -1):
        states = walk.timed_before(stage, states, window_ns)
        if not states:
            return None
    return Reach(recompute_ns=states[0][0], schedule=_runs_of(walk.trails[0]))


_Trail = tuple[()] | tuple["_Trail", tuple[int, ...]]
"""The runs after a state: the trail of the state at the stage after, and what leads there from here, last run first."""


def _runs_of(trail: _Trail | None) -> tuple[int, ...] | None:
    if trail is None:
        return None
    runs: list[int] = []
    while trail:
        trail, last_first = trail
        runs.extend(reversed(last_first))
    return tuple(runs)


class _TimedWalk(Walk):
    """`trails` are those of the states from which the last step began, by wanted values; None for merged ones."""

    def __init__(self, lifetimes: Lifetimes, budget_bytes: int, effort: int, should_stop: Callable[[], bool]) -> None:
        super().__init__(lifetimes, budget_bytes, effort, should_stop)
        self.trails: dict[int, _Trail | None] = {0: ()}

    def timed_before(self, stage: int, states: list[_TimedState], window_ns: int) -> list[_TimedState]:
        """The states right before the first run of op `stage`, cheapest first; none if the effort is used up."""
        queue = list(states)
        heapq.heapify(queue)
        least = {wanted: time_ns for time_ns, _, wanted in states}
        limit_ns = queue[0][0] + window_ns
        came: dict[int, tuple[int, int]] = {}
        found: dict[int, _TimedState] = {}
        after: dict[int, int | None] = {}
        first_reads = self.first_runs[stage].reads
        is_merged = False
        while queue:
            time_ns, in_use, wanted = heapq.heappop(queue)
            if time_ns > least[wanted] or _is_dominated(wanted, time_ns, least):
                continue
            if self.is_tired(0):
                return []
            if time_ns > limit_ns:
                in_use = wanted = 0
                queue.clear()
                is_merged = True
            first = self.step_back(self.first_runs[stage], stage, (in_use, wanted))
            if first is not None:
                if first[1] not in found:
                    found[first[1]] = (time_ns, *first)
                    after[first[1]] = None if is_merged else wanted
                if not first_reads & ~wanted:
                    continue
            for op, earlier in self._timed_recomputes(stage, time_ns, in_use, wanted):
                if earlier[0] < least.get(earlier[2], earlier[0] + 1):
                    least[earlier[2]] = earlier[0]
                    came[earlier[2]] = op, wanted
                    heapq.heappush(queue, earlier)
        kept = _undominated(found.values())
        self.trails = {wanted: self._trail(stage, after[wanted], came) for _, _, wanted in kept}
        return kept

    def _trail(self, stage: int, wanted: int | None, came: dict[int, tuple[int, int]]) -> _Trail | None:
        """The trail of a state before the first run of `stage`, which led to `wanted`; None if that was merged."""
        if wanted is None:
            return None
        runs = [stage]
        while wanted in came:
            op, wanted = came[wanted]
            runs.append(op)
        later = self.trails[wanted]
        return None if later is None else (later, tuple(reversed(runs)))

    def _timed_recomputes(self, stage: int, time_ns: int, in_use: int, wanted: int) -> list[tuple[int, _TimedState]]:
        """The ops that give some wanted value if they run again, each with the state before."""
        ops, may_rerun = self.lifetimes.graph.ops, self.lifetimes.may_rerun
        left = wanted & self.values
        found: list[tuple[int, _TimedState]] = []
        while left:
            op = self.producer[(left & -left).bit_length() - 1]
            left &= ~self.reruns[op].writes
            if may_rerun[op]:
                earlier = self.step_back(self.reruns[op], stage, (in_use, wanted))
                if earlier is not None:
                    found.append((op, (time_ns + ops[op].time_ns, *earlier)))
        return found


def _is_dominated(wanted: int, time_ns: int, least: dict[int, int]) -> bool:
    """Whether a state that wants one value less takes no more time: `least` has what is known at this stage."""
    left = wanted
    while left:
        bit = left & -left
        left ^= bit
        if least.get(wanted ^ bit, time_ns + 1) <= time_ns:
            return True
    return False


def _undominated(found: Iterable[_TimedState]) -> list[_TimedState]:
    """Without those that want what a cheaper one wants and more, cheapest first."""
    kept: list[_TimedState] = []
    known = WantedSets()
    for state in sorted(found):
        if not known.any_within(state[2]):
            known.add(state[2])
            kept.append(state)
    return kept


def _without_replay_states(lifetimes: Lifetimes) -> Lifetimes:
    ops = tuple(replace(op, recompute_state_bytes=0) for op in lifetimes.graph.ops)
    return replace(lifetimes, graph=replace(lifetimes.graph, ops=ops))


class BackwardBound:
    """Ever larger windows. `bound_ns` is a bound on the time of whole schedules; `schedule` one that meets it.

    Replay states are some kilobytes each, and make several states of one. So they are left out, which is a relaxation,
    until a schedule is found that does not fit with them.
    """

    def __init__(self, task: Task, lifetimes: Lifetimes) -> None:
        self.task = task
        self.exact = lifetimes
        self.lifetimes = _without_replay_states(lifetimes)
        self.window = _FIRST_WINDOW
        self.bound_ns = task.graph.total_time_ns
        self.schedule: tuple[int, ...] | None = None

    def raise_for(self, seconds: float, *, enough_ns: float) -> None:
        """Raises `bound_ns` for so long, or until it is `enough_ns`."""
        stop_s = time.monotonic() + seconds
        while self.schedule is None and self.bound_ns < enough_ns:
            reach = least_recompute_time(
                self.lifetimes,
                self.task.budget_bytes,
                window_ns=int(self.window * self.task.graph.total_time_ns),
                effort=sys.maxsize,
                should_stop=lambda: time.monotonic() >= stop_s or self.task.is_over(),
            )
            if reach is None:
                return
            self.bound_ns = max(self.bound_ns, self.task.graph.total_time_ns + reach.recompute_ns)
            if reach.schedule is None:
                self.window *= _WINDOW_GROWTH
            elif simulate(self.task.graph, reach.schedule).peak_bytes <= self.task.budget_bytes:
                self.schedule = reach.schedule
            else:
                self.lifetimes = self.exact
