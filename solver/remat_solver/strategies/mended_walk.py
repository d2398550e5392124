"""First schedules for budgets near the floor: a walk back from the end, mended wherever it is blocked.

Evictions decide about one value at a time, going forwards; near the floor they end where what an op reads can't be
brought together any more. Seen from the end (`backward_walk`) it is known at each moment what must be in memory, and
nothing besides. Here one such walk takes the ops' first runs, last op first, and recomputes nothing until memory does
not suffice for an op. Then one of the values that wait there is made again later in time, so that it need not wait: at
the widest place between the op and the value's next read, where everything else that is wanted stays as it is. What
that takes is made again in its turn, one input after the other, each on the place that the one before has left, back
to values that wait at the blocked op anyway or that are yet to be computed between the two places. It is worth it if
fewer bytes wait then. The rest of the walk follows as it was, and goes on.

Of several walks that are blocked, the one that came nearest to the first op is mended next, and of these the one that
lacks the fewest bytes there. An attempt is a few thousand steps on graphs whose sets of values are beyond counting
(`backward_walk.Judge`). No optimality is claimed, and a failure proves nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.strategies.backward_walk import State, Walk
from remat_solver.strategies.wanted_sets import WantedSets

_EFFORT = 150_000
"""Steps for one attempt, some 100,000 a second. What was ever found took fewer."""
_MOST_STEPS = 5_000
"""For making one value again. Where it takes more, another is the better choice."""
_DEEPEST = 400
"""Inputs of inputs, and so on."""


def first_schedules(
    lifetimes: Lifetimes, budget_bytes: int, *, should_stop: Callable[[], bool]
) -> Iterator[list[int] | None]:
    """Schedules that fit the budget: one found soon, and mostly a faster one. None now and then, for a pause."""
    for is_thorough in (False, True):
        is_found = False
        for is_frugal in (False, True):
            walk = MendedWalk(
                lifetimes, budget_bytes, _EFFORT, should_stop, is_frugal=is_frugal, is_thorough=is_thorough
            )
            for schedule in walk.search():
                is_found |= schedule is not None
                yield schedule
        if is_found:
            return


@dataclass(frozen=True, slots=True)
class _Stop:
    """The moment before a run of `op`: so many ops have begun by then, and the state."""

    op: int
    begun: int
    state: State


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A walk, and how many bytes it lacks for its next step; none if it has arrived."""

    stops: list[_Stop]
    lacking_bytes: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.stops[-1].begun, self.lacking_bytes, self.stops[-1].state[0]


@dataclass(frozen=True, slots=True)
class _Mend:
    """How to go on from a stop of a walk so that fewer bytes wait at its end, and what that costs by the byte."""

    place: int
    made: list[_Stop]
    price: float


class MendedWalk(Walk):
    """Looks for one walk back to the first op.

    The largest of the values that wait is made again first, which leads there soonest; a walk that `is_frugal` looks
    at all of them first, and takes them by the time for each byte that is lacking. Inputs are made again the latest
    first, since what comes earlier often serves those as well; a walk that `is_thorough` tries the earliest first too,
    where that fails: that asks for less memory, and more time.
    """

    def __init__(
        self,
        lifetimes: Lifetimes,
        budget_bytes: int,
        effort: int,
        should_stop: Callable[[], bool],
        *,
        is_frugal: bool,
        is_thorough: bool,
    ) -> None:
        super().__init__(lifetimes, budget_bytes, effort, should_stop)
        self.is_frugal = is_frugal
        self.is_thorough = is_thorough
        self.waiting = 0
        """What may be in memory at the blocked op: its values weigh, all others are computed later."""
        self.failed: set[tuple[int, int]] = set()
        """Which value could not be made again among which."""
        self.limit = 0

    def search(self) -> Iterator[list[int] | None]:
        """The runs of a walk that arrives, in order of time, if one is found within the effort; None before that."""
        tie = count()
        start = self._go_on([_Stop(-1, len(self.first_runs), (0, 0))])
        queue: list[tuple[tuple[int, int, int], int, _Blocked, Iterator[_Blocked] | None]]
        queue = [(start.rank, next(tie), start, None)]
        mended = [WantedSets() for _ in range(len(self.first_runs) + 1)]
        while queue and not self._is_spent():
            rank, _, blocked, mends = heapq.heappop(queue)
            here = blocked.stops[-1]
            if not here.begun:
                yield [stop.op for stop in blocked.stops[:0:-1]]
                return
            if mends is None:
                if mended[here.begun].any_within(here.state[1]):
                    continue
                mended[here.begun].add(here.state[1])
                mends = self._mends(blocked)
            better = next(mends, None)
            if better is not None:
                heapq.heappush(queue, (rank, next(tie), blocked, mends))
                heapq.heappush(queue, (better.rank, next(tie), better, None))
            yield None

    def _go_on(self, stops: list[_Stop]) -> _Blocked:
        """Takes first runs as long as memory suffices."""
        while stops[-1].begun:
            stage, state = stops[-1].begun - 1, stops[-1].state
            earlier = self.step_back(self.first_runs[stage], stage, state)
            if earlier is None:
                return _Blocked(stops, self.needed_bytes(self.first_runs[stage], stage, state) - self.budget_bytes)
            stops.append(_Stop(stage, stage, earlier))
        return _Blocked(stops, 0)

    def _mends(self, blocked: _Blocked) -> Iterator[_Blocked]:
        """Walks that make one of the values that wait at the end of this one again: those in the way first."""
        stops = blocked.stops
        run, wanted = self.first_runs[stops[-1].begun - 1], stops[-1].state[1]
        needed = run.reads | run.writes
        for waiting in (wanted & ~needed, wanted & needed):
            tried = (self._mend(blocked, value) for value in self._by_size(waiting))
            mends = (mend for mend in tried if mend is not None)
            for mend in sorted(mends, key=lambda mend: mend.price) if self.is_frugal else mends:
                yield self._go_on(self._replay([*stops[: mend.place + 1], *mend.made], stops[mend.place + 1 :]))

    def _mend(self, blocked: _Blocked, value: int) -> _Mend | None:
        stops = blocked.stops
        self.waiting = self._computed_before(stops[-1].begun)
        self.failed.clear()
        self.limit = min(self.steps + _MOST_STEPS, self.effort)
        place = self._widest(stops, value)
        made = self._make_again_or_make_room(stops[place], value)
        if not made:
            return None
        freed_bytes = self._waiting_bytes(stops[place]) - self._waiting_bytes(made[-1])
        time_ns = sum(self.lifetimes.graph.ops[stop.op].time_ns for stop in made)
        return _Mend(place, made, time_ns / min(freed_bytes, blocked.lacking_bytes))

    def _widest(self, stops: list[_Stop], value: int) -> int:
        """Where memory is least full, between the end and the last stop at which the walk reads the value."""
        widest, least_bytes = 0, None
        for place in range(len(stops) - 1, 0, -1):
            stop = stops[place]
            if not stop.state[1] >> value & 1:
                break
            in_use = stop.state[0] + self.resident[stop.begun - 1]
            if least_bytes is None or in_use < least_bytes:
                widest, least_bytes = place, in_use
            if self.first_runs[stop.op].reads >> value & 1:
                break
        return widest

    def _make_again_or_make_room(self, stop: _Stop, value: int) -> list[_Stop] | None:
        """Makes a value again; if there is no room for its op, after (before, in time) the largest of the others."""
        made: list[_Stop] = []
        if self._rerun_before(stop, value) is None:
            run = self.reruns[self.producer[value]]
            for other in self._by_size(stop.state[1] & ~(run.reads | run.writes)):
                here = made[-1] if made else stop
                if not here.state[1] >> value & 1:
                    return made
                if self._rerun_before(here, value) is not None:
                    break
                if here.state[1] >> other & 1:
                    made.extend(self._make_again(here, other, 0) or ())
        more = self._make_again(made[-1] if made else stop, value, 0)
        return None if more is None else [*made, *more]

    def _make_again(self, stop: _Stop, value: int, depth: int) -> list[_Stop] | None:
        """The stops of a walk on from `stop` after which fewer bytes wait, as the value is made again here."""
        key = stop.state[1], value
        if key in self.failed or depth > _DEEPEST or self.steps > self.limit or self.is_tired(0):
            return None
        rerun = self._rerun_before(stop, value)
        if rerun is not None:
            inputs = list(self._latest_first(rerun.state[1] & ~stop.state[1] & self.waiting & self.values))
            for order in (inputs, inputs[::-1]) if self.is_thorough and len(inputs) > 1 else (inputs,):
                made = self._with_inputs(rerun, order, depth)
                if self._waiting_bytes(made[-1]) < self._waiting_bytes(stop):
                    return made
        self.failed.add(key)
        return None

    def _with_inputs(self, rerun: _Stop, inputs: list[int], depth: int) -> list[_Stop]:
        """A rerun and what makes its inputs again, one after the other; those for which there is no way wait."""
        made = [rerun]
        for value in inputs:
            if made[-1].state[1] >> value & 1:
                made.extend(self._make_again(made[-1], value, depth + 1) or ())
        return made

    def _rerun_before(self, stop: _Stop, value: int) -> _Stop | None:
        """The stop before a rerun that gives the value; None if there is none, or no room for it."""
        op = self.producer[value]
        if not self.lifetimes.may_rerun[op]:
            return None
        earlier = self.step_back(self.reruns[op], stop.begun - 1, stop.state)
        return None if earlier is None else _Stop(op, stop.begun, earlier)

    def _replay(self, stops: list[_Stop], later: list[_Stop]) -> list[_Stop]:
        """Goes on as before, without reruns that serve nothing any more or find no room, until it is blocked."""
        for stop in later:
            here = stops[-1]
            is_first = stop.begun < here.begun
            run = self.first_runs[stop.op] if is_first else self.reruns[stop.op]
            if is_first or here.state[1] & run.writes:
                earlier = self.step_back(run, here.begun - 1, here.state)
                if earlier is not None:
                    stops.append(_Stop(stop.op, stop.begun, earlier))
                elif is_first:
                    break
        return stops

    def _computed_before(self, begun: int) -> int:
        """The values and the replay states of the first ops, so many of them."""
        graph = self.lifetimes.graph
        return ((1 << begun) - 1) << len(graph.sizes) | ((1 << graph.first_value[begun]) - 1)

    def _waiting_bytes(self, stop: _Stop) -> int:
        return sum(self.sizes[bit] for bit in self._latest_first(stop.state[1] & self.waiting))

    def _by_size(self, values: int) -> list[int]:
        return sorted(self._latest_first(values & self.values), key=lambda value: (-self.sizes[value], -value))

    def _latest_first(self, bits: int) -> Iterator[int]:
        while bits:
            bit = bits.bit_length() - 1
            bits ^= 1 << bit
            yield bit

    def _is_spent(self) -> bool:
        return self.steps > self.effort or self.should_stop()
