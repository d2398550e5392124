"""Range cuts: what a relaxation loses when time is cut into many intervals, brought back at the root.

Each slot that is added to the program of `formulation.memory_cuts` splits an interval, and its linear relaxation
gets weaker by that: half a copy of a value, kept over two slots, pays for half a recomputation of its reader in
each of the intervals between. Take a slot k-1 and a demand in a later interval or slot l: an op t whose first
run lies there and reads value v_0, or v_0 in memory at slot l. Follow producers back along a path of values: v_0
is written by an op that reads v_1, that one is written by an op that reads v_2, and so on; op q writes the last,
v_r. If none of these values is in memory at slot k-1, then q runs between slot k-1 and the demand:

    sum of R[m,q] over the intervals m = k..l  +  sum of X[m] over the slots between with v_m = q
        +  sum of S[k-1,v_0 .. v_r]  >=  1,  or S[l,v_0] for a value in memory.

Valid for every schedule: what is read between the two comes from a copy that is in memory at slot k-1 or from a
run after it. Slots add no assumption here, so that the scope of a proof does not change.

There are exponentially many paths; for a given fractional point the most violated one to each q is found by
one backward sweep over the ops, so that a round of separation takes O(K^2 edges).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.memory_cuts import ONE, CutModel, Slot

MIN_VIOLATION = 0.02
"""Cuts violated by less are not worth a row."""


@dataclass(frozen=True, kw_only=True)
class RangeCut:
    """One cut, in terms that outlive the model: it can be written as a row of every model that has its slots.

    `base`: the slot before the range. `path`: values from the demanded one back to one that `producer`
    writes. The demand is the first run of op `reader`, or `path[0]` in memory at slot `held_at`.
    """

    base: Slot
    path: tuple[int, ...]
    producer: int
    reader: int | None = None
    held_at: Slot | None = None


def add_cut(model: CutModel, cut: RangeCut) -> bool:
    """Writes `cut` as a row of the model's program; False if it says nothing there."""
    terms = _terms(model, cut)
    if terms is None:
        return False
    row, lower = terms
    columns = [column for column, coefficient in row.items() if coefficient]
    model.program.add_row(columns, [row[column] for column in columns], lower=lower, upper=math.inf)
    return bool(columns)


def _terms(model: CutModel, cut: RangeCut) -> tuple[dict[int, float], float] | None:
    """Columns with coefficients, and the lower bound; None without the slots, or for a row that holds by itself."""
    first = _position(model, cut.base)
    if first is None:
        return None
    row: dict[int, float] = {}
    for value in cut.path:
        column = model.kept[first].get(value)
        if column == ONE:
            return None
        if column is not None:
            row[column] = row.get(column, 0.0) + 1.0
    lower = 1.0
    if cut.reader is not None:
        last = bisect_left(model.slots, (cut.reader, cut.reader))
        last_slot = last
    else:
        assert cut.held_at is not None
        position = _position(model, cut.held_at)
        held = None if position is None else model.kept[position].get(cut.path[0])
        if position is None or held is None:
            return None
        last, last_slot = position, position + 1
        if held != ONE:
            row[held] = row.get(held, 0.0) - 1.0
            lower = 0.0
    for column in runs_in(model, cut.producer, range(first + 1, last + 1), range(first + 1, last_slot)):
        row[column] = row.get(column, 0.0) + 1.0
    return row, lower


def _position(model: CutModel, slot: Slot) -> int | None:
    """Which of the model's slots it is, if any."""
    position = bisect_left(model.slots, slot)
    return position if model.slots[position : position + 1] == (slot,) else None


def runs_in(model: CutModel, op: int, intervals: range, slots: range) -> Iterator[int]:
    """The columns R and X that stand for a run of `op` in these intervals and at these slots."""
    for interval in intervals:
        column = model.rerun[interval].get(op)
        if column is not None:
            yield column
    for slot in slots:
        executed = model.executed[slot]
        if executed is not None and executed != ONE and model.slots[slot][1] == op:
            yield executed


def violated_cuts(lifetimes: Lifetimes, model: CutModel, x: Sequence[float], *, per_range: int = 8) -> list[RangeCut]:
    """For each range of slots, the `per_range` cuts that the point `x` violates most, weighed by the op's time."""
    found: list[RangeCut] = []
    for base in range(len(model.slots)):
        found.extend(_Sweep(lifetimes, model, x, base).cuts(per_range))
    return found


class _Sweep:
    """Separation for the ranges that begin at one slot."""

    def __init__(self, lifetimes: Lifetimes, model: CutModel, x: Sequence[float], base: int) -> None:
        self.lifetimes = lifetimes
        self.model = model
        self.x = x
        self.base = base
        stage, op = model.slots[base]
        self.old = stage + 1 if op == stage else stage
        """Ops below it have run for the first time before the range."""
        self.supply = [0.0] * self.old
        """How much of each op has run in the range so far."""

    def cuts(self, per_range: int) -> Iterator[RangeCut]:
        model = self.model
        for interval in range(self.base + 1, len(model.slots) + 1):
            for op, column in model.rerun[interval].items():
                if op < self.old:
                    self.supply[op] += self.x[column]
            yield from self._paths(self._read_by_first_runs(interval), per_range, held_at=None)
            if interval < len(model.slots):
                slot = model.slots[interval]
                executed = model.executed[interval]
                if executed is not None and executed != ONE and slot[1] < self.old:
                    self.supply[slot[1]] += self.x[executed]
                yield from self._paths(self._held_at(interval), per_range, held_at=slot)

    def _read_by_first_runs(self, interval: int) -> dict[int, tuple[float, int]]:
        """Old values that ops first run in the interval read: (1, the reader)."""
        stage, op = self.model.slots[interval - 1]
        first = stage + 1 if op == stage else stage
        is_last = interval == len(self.model.slots)
        end = len(self.lifetimes.graph) if is_last else self.model.slots[interval][0]
        producer = self.lifetimes.graph.producer
        demands: dict[int, tuple[float, int]] = {}
        for reader in range(first, end):
            for value in self.lifetimes.reads[reader]:
                if producer[value] < self.old:
                    demands.setdefault(value, (1.0, reader))
        return demands

    def _held_at(self, slot: int) -> dict[int, tuple[float, int]]:
        """Old values in memory at the slot: (how much, no reader)."""
        producer = self.lifetimes.graph.producer
        held = ((value, self._amount(column)) for value, column in self.model.kept[slot].items())
        return {value: (amount, -1) for value, amount in held if producer[value] < self.old and amount > MIN_VIOLATION}

    def _amount(self, column: int | None) -> float:
        if column is None:
            return 0.0
        return 1.0 if column == ONE else self.x[column]

    def _paths(
        self, demands: dict[int, tuple[float, int]], per_range: int, *, held_at: Slot | None
    ) -> Iterator[RangeCut]:
        """The worst violated cuts for these demands, by one sweep backwards over the ops that must run for them."""
        graph, kept = self.lifetimes.graph, self.model.kept[self.base]
        wanted: dict[int, tuple[float, int]] = dict(demands)
        """By value: how much of it is wanted, and by which op (a first run's, or one that must run again)."""
        by_op: dict[int, set[int]] = {}
        for value in wanted:
            by_op.setdefault(graph.producer[value], set()).add(value)
        queue = [-op for op in by_op]
        heapq.heapify(queue)
        through: dict[int, int] = {}
        violated: list[tuple[float, int]] = []
        while queue:
            op = -heapq.heappop(queue)
            need, value = max((wanted[v][0] - self._amount(kept.get(v)), v) for v in by_op[op])
            if need <= MIN_VIOLATION:
                continue
            through[op] = value
            if need - self.supply[op] > MIN_VIOLATION:
                violated.append(((need - self.supply[op]) * (1 + graph.ops[op].time_ns), op))
            for read in self.lifetimes.reads[op]:
                if kept.get(read) == ONE or (read in wanted and wanted[read][0] >= need):
                    continue
                wanted[read] = (need, op)
                if graph.producer[read] not in by_op:
                    heapq.heappush(queue, -graph.producer[read])
                by_op.setdefault(graph.producer[read], set()).add(read)
        for _, op in heapq.nlargest(per_range, violated):
            yield self._trace(op, through, wanted, held_at)

    def _trace(
        self, producer: int, through: dict[int, int], wanted: dict[int, tuple[float, int]], held_at: Slot | None
    ) -> RangeCut:
        """The cut of the path that ends at `producer`."""
        path = [through[producer]]
        reader = wanted[path[-1]][1]
        while reader in through:
            path.append(through[reader])
            reader = wanted[path[-1]][1]
        return RangeCut(
            base=self.model.slots[self.base],
            path=tuple(reversed(path)),
            producer=producer,
            reader=reader if held_at is None else None,
            held_at=held_at,
        )
