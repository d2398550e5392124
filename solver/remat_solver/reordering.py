"""A memory-aware order of the ops, found before any recomputation is planned. A step of its own.

First a list schedule: of the ops that are ready, run the one that adds least to memory (what it writes,
less what dies with it). Then a local search that moves one op at a time to another place that its
neighbours in the graph allow, and keeps a move if the bytes above the budget, summed over all steps,
do not grow, or grow by a little, ever less (simulated annealing, Kirkpatrick et al., Science 1983). It cools down
several times from the same start, as time allows. The best of the results and the given order is kept.

What must not change places stays in order: ops that may not be recomputed (collectives, mutation of
inputs) and ops that draw random numbers (`recompute_state_bytes`). Another order is another graph, with
another hash: `Reordering` carries it and leads schedules back.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule

_CHECK_EVERY = 64
_COOLINGS = 4
_MOVES = 300
"""So many tries for each op from hot to cold; a cooling that the time does not allow for is faster."""
_HEAT = 0.3
"""The first heat, by the largest value and the number of ops: that value moved over a third of the order."""
_COLD = 1e-4
"""The last heat, as a share of the first."""
_GENTLE = 0.02
"""The first heat of a short search, as a share of a long one's: hot orders need time to cool."""
_TRIAL_S = 1.0
_LEAST_GAIN = 0.01
"""A search that does not lower the peak by this much in `_TRIAL_S` is given up: training graphs hardly gain."""
_SEARCH_SHARE = 0.25
"""Of a solve's time, for a search that is not given up."""


@dataclass(frozen=True, kw_only=True)
class Reordering:
    """`graph` has the ops of the original in another order: its op k is the original's op `order[k]`.

    `peak_bytes` is its store-all peak, `original_peak_bytes` that of the given order.
    """

    graph: Graph
    order: tuple[int, ...]
    peak_bytes: int
    original_peak_bytes: int

    def in_original(self, schedule: Sequence[int]) -> tuple[int, ...]:
        """A schedule of `graph` as op numbers of the original graph."""
        return tuple(self.order[op] for op in schedule)


def reorder(
    graph: Graph,
    *,
    budget_bytes: int | None = None,
    time_limit_s: float = 5.0,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
    is_short: bool = False,
) -> Reordering:
    """Looks for an order with little memory above `budget_bytes` (None: above 9/10 of the best peak so far).

    Ends at once when the store-all peak is within the budget. Same input and enough time, same answer. `is_short`: cool
    down once, and gently.
    """
    stop_s = time.monotonic() + time_limit_s
    before = _Dependencies(graph)
    orders = [list(range(len(graph))), before.list_schedule()]
    best = min(orders, key=lambda order: (_peak(graph, order), orders.index(order)))
    budget = budget_bytes if budget_bytes is not None else _peak(graph, best) * 9 // 10
    first, source = best, random.Random(seed)
    for _ in range(1 if is_short else _COOLINGS):
        now = time.monotonic()
        if now >= stop_s or (should_stop is not None and should_stop()) or _peak(graph, best) <= budget:
            break
        search = _Annealing(before, first, budget, source)
        cooling = _Cooling(
            tries=_MOVES * len(graph),
            heat=_HEAT * len(graph) * max(graph.sizes, default=0) * (_GENTLE if is_short else 1),
            started_s=now,
            stop_s=stop_s,
            should_stop=should_stop,
        )
        best = min((best, search.run(cooling)), key=lambda order: _peak(graph, order))
    return Reordering(
        graph=permute(graph, best),
        order=tuple(best),
        peak_bytes=_peak(graph, best),
        original_peak_bytes=_peak(graph, orders[0]),
    )


def worthwhile_order(
    graph: Graph, *, budget_bytes: int, time_limit_s: float, should_stop: Callable[[], bool] | None = None
) -> Reordering | None:
    """Another order for a solve with this budget and time limit; None where it has no use or gains too little."""
    if simulate(graph, store_all_schedule(graph)).peak_bytes <= budget_bytes:
        return None
    allowed_s = _SEARCH_SHARE * time_limit_s

    def search(seconds: float, *, is_short: bool) -> Reordering:
        return reorder(
            graph, budget_bytes=budget_bytes, time_limit_s=seconds, should_stop=should_stop, is_short=is_short
        )

    found = search(min(_TRIAL_S, allowed_s), is_short=True)
    if found.peak_bytes > (1 - _LEAST_GAIN) * found.original_peak_bytes:
        return None
    if found.peak_bytes > budget_bytes and allowed_s > _TRIAL_S:
        longer = search(allowed_s - _TRIAL_S, is_short=False)
        found = min(found, longer, key=lambda reordering: reordering.peak_bytes)
    return found


def permute(graph: Graph, order: Sequence[int]) -> Graph:
    """The same ops in another topological order, values numbered anew. Raises `InvalidGraph` if it is none."""
    renamed: dict[int, int] = {}
    for op in order:
        for value in graph.written_by(op):
            renamed[value] = len(renamed)
    ops = tuple(
        dataclasses.replace(graph.ops[op], reads=tuple(sorted(renamed[value] for value in graph.ops[op].reads)))
        for op in order
    )
    return dataclasses.replace(graph, ops=ops, outputs=tuple(sorted(renamed[value] for value in graph.outputs)))


def _peak(graph: Graph, order: Sequence[int]) -> int:
    permuted = permute(graph, order)
    return simulate(permuted, store_all_schedule(permuted)).peak_bytes


class _Dependencies:
    """Which op must come before which: by values, and in a chain through the ops that may not change places."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.before: list[set[int]] = [{graph.producer[value] for value in op.reads} for op in graph.ops]
        fixed = [op for op, keeps in enumerate(graph.keeps_its_place) if keeps]
        for earlier, later in itertools.pairwise(fixed):
            self.before[later].add(earlier)
        self.after: list[list[int]] = [[] for _ in graph.ops]
        for op, earlier_ops in enumerate(self.before):
            for earlier in earlier_ops:
                self.after[earlier].append(op)

    def list_schedule(self) -> list[int]:
        """Greedy: the ready op that adds least to memory; the given order breaks ties."""
        graph = self.graph
        unread = [len(readers) for readers in graph.readers]
        waiting = [len(earlier) for earlier in self.before]
        ready = {op for op, count in enumerate(waiting) if not count}
        order: list[int] = []
        while ready:
            chosen = min(ready, key=lambda op: (self._growth(op, unread), op))
            ready.discard(chosen)
            order.append(chosen)
            for value in graph.ops[chosen].reads:
                unread[value] -= 1
            for later in self.after[chosen]:
                waiting[later] -= 1
                if not waiting[later]:
                    ready.add(later)
        return order

    def _growth(self, op: int, unread: list[int]) -> int:
        graph = self.graph
        written = sum(graph.sizes[v] for v in graph.written_by(op) if unread[v] or graph.is_output[v])
        freed = sum(graph.sizes[v] for v in graph.ops[op].reads if unread[v] == 1 and not graph.is_output[v])
        return written - freed


@dataclass(frozen=True, kw_only=True)
class _Cooling:
    """How a search cools down: by its tries, or by the clock where that is nearer to its end."""

    tries: int
    heat: float
    started_s: float
    stop_s: float
    should_stop: Callable[[], bool] | None

    def share(self, tries: int) -> float:
        """How much of it is done after so many tries; 1 ends it."""
        if self.should_stop is not None and self.should_stop():
            return 1.0
        elapsed = (time.monotonic() - self.started_s) / max(self.stop_s - self.started_s, 1e-9)
        return max(elapsed, tries / self.tries)


class _Annealing:
    """Moves one op at a time; only the steps between its two places change."""

    def __init__(self, dependencies: _Dependencies, order: list[int], budget_bytes: int, source: random.Random) -> None:
        self.dependencies = dependencies
        self.graph = dependencies.graph
        self.budget_bytes = budget_bytes
        self.random = source
        self.order = list(order)
        self.place = [0] * len(order)
        for place, op in enumerate(order):
            self.place[op] = place
        self.start: list[int] = [0] * len(order)
        self.excess: list[int] = [0] * len(order)
        self._measure(0, len(order))

    def run(self, cooling: _Cooling) -> list[int]:
        """The best order met until it is cold or nothing exceeds the budget."""
        current = lowest = sum(self.excess)
        best = list(self.order)
        heat = cooling.heat
        tries = 0
        while lowest:
            if tries % _CHECK_EVERY == 0:
                done = cooling.share(tries)
                if done >= 1:
                    break
                heat = cooling.heat * _COLD**done
            tries += 1
            current += self._try_move(heat)
            if current < lowest:
                lowest, best = current, list(self.order)
        return best

    def _try_move(self, heat: float) -> int:
        """One random move, undone if it is too bad; returns the change of the excess."""
        op = self.random.randrange(len(self.order))
        old = self.place[op]
        low = max((self.place[earlier] for earlier in self.dependencies.before[op]), default=-1) + 1
        high = min((self.place[later] for later in self.dependencies.after[op]), default=len(self.order)) - 1
        if low >= high:
            return 0
        reach = self.random.choice((1, 3, 10, 40, len(self.order)))
        new = self.random.randint(max(low, old - reach), min(high, old + reach))
        if new == old:
            return 0
        first, end = min(old, new), max(old, new) + 1
        saved = self.start[first:end], self.excess[first:end]
        self._shift(old, new)
        self._measure(first, end)
        change = sum(self.excess[first:end]) - sum(saved[1])
        if change <= 0 or self.random.random() < math.exp(-change / max(heat, 1e-9)):
            return change
        self._shift(new, old)
        self.start[first:end], self.excess[first:end] = saved
        return 0

    def _shift(self, old: int, new: int) -> None:
        self.order.insert(new, self.order.pop(old))
        for place in range(min(old, new), max(old, new) + 1):
            self.place[self.order[place]] = place

    def _measure(self, first: int, end: int) -> None:
        """Memory of steps first to end - 1, from what is in use at the start of step `first`."""
        graph, place = self.graph, self.place
        in_use = self.start[first] if first else graph.fixed_bytes
        for step in range(first, end):
            op = self.order[step]
            self.start[step] = in_use
            written = graph.written_by(op)
            in_use += sum(graph.sizes[value] for value in written)
            running = in_use + graph.ops[op].workspace_bytes
            self.excess[step] = max(0, running - self.budget_bytes)
            for value in graph.ops[op].reads:
                if not graph.is_output[value] and all(place[reader] <= step for reader in graph.readers[value]):
                    in_use -= graph.sizes[value]
            in_use -= sum(graph.sizes[v] for v in written if not graph.readers[v] and not graph.is_output[v])
