"""Recomputes at given times: a small program whose rounded relaxation is a plan.

Where the relaxed schedule of `formulation.memory_cuts` exceeds the budget at dozens of places, a slot for each makes a
program too large. This one knows the memory in use at every step, because it fixes when ops may run again: an op that
first runs up to a step `pivot` (the store-all peak) may run once more, right before the first run of a later op t, for
some ops t, its *times*: those that read what it writes, or need it to have something that they read. No time is later
than the next first run that reads one of its values.

* `W[i,t]` = 1: op i runs again, before op t or at a later one of its times. It falls with t, and costs the op's time at
  its first.
* A value o of op p that a first run at or after step q reads is in memory at q unless p runs again at q or later:
  `1 - W[p,q]`, which needs no column.
* A value that only recomputes read from q on is kept for them: `A[o,q] >= W[j,q] - W[p,q]` for each reader j.
* An op does not run again after an op that runs again and reads it: `W[i,t'] + W[j,first] - W[j,t'] <= 1`, t' after t.

Rows other than those of memory are differences of columns, for the most part, so that they hold for whatever threshold
rounds a fractional solution. Left out are workspaces of recomputes, and what is in memory among the recomputes of one
time; values of fewer than `least_bytes` stay as long as anything could read them. No bound follows, since schedules are
restricted.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from remat_solver.engines.base import MixedIntegerProgram
from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.memory_cuts import Scale, scale_for
from remat_solver.simulate import simulate, store_all_schedule

_MOST_OPS = 40
"""That may run again before one op, the nearest first."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """`size_bytes` in memory from step `start` to `end` - 1 as far as `column` is 1 (less by so much if negative)."""

    column: int
    start: int
    end: int
    size_bytes: int


@dataclass(kw_only=True)
class TimedModel:
    """The program without rows of memory; `add_memory_row` writes one for a step.

    `times[i]`: the ops before whose first run op i may run again, ascending, with their columns W. `fixed_bytes[q]`:
    the memory in use at step q of the store-all schedule that no column decides about.
    """

    lifetimes: Lifetimes
    pivot: int
    budget_bytes: int
    scale: Scale
    program: MixedIntegerProgram = field(default_factory=MixedIntegerProgram)
    times: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    fixed_bytes: npt.NDArray[np.float64]

    def in_use(self, x: Sequence[float]) -> npt.NDArray[np.float64]:
        """The memory in use at each step for a solution `x`, in bytes."""
        change = np.zeros(len(self.fixed_bytes) + 1)
        for span in self.spans:
            amount = span.size_bytes * x[span.column]
            change[span.start] += amount
            change[span.end] -= amount
        return self.fixed_bytes + np.cumsum(change)[:-1]

    def add_memory_row(self, step: int) -> int:
        """What is in memory at the step fits into the budget; returns the row's index."""
        load: dict[int, int] = {}
        for span in self.spans:
            if span.start <= step < span.end:
                load[span.column] = load.get(span.column, 0) + span.size_bytes
        unit = self.scale.memory_unit
        room = (self.budget_bytes - float(self.fixed_bytes[step])) / unit
        return self.program.add_row(list(load), [size / unit for size in load.values()], lower=-math.inf, upper=room)

    def schedule(self, x: Sequence[float], threshold: float) -> list[int]:
        """The schedule in which ops run again whose W are at least `threshold`, at the latest such time."""
        again: dict[int, list[int]] = {}
        for op, (times, columns) in self.times.items():
            count = sum(x[column] >= threshold for column in columns)
            if count:
                again.setdefault(times[count - 1], []).append(op)
        return [op for first in range(len(self.fixed_bytes)) for op in (*sorted(again.get(first, ())), first)]


def build_timed(
    lifetimes: Lifetimes, pivot: int, budget_bytes: int, *, reach_ns: float, least_bytes: float
) -> TimedModel:
    """The program. `reach_ns`: an op is no time for ops further back than that on the way to what it reads."""
    return _Builder(lifetimes, pivot, budget_bytes, reach_ns, least_bytes).build()


class _Builder:
    def __init__(
        self, lifetimes: Lifetimes, pivot: int, budget_bytes: int, reach_ns: float, least_bytes: float
    ) -> None:
        self.lifetimes = lifetimes
        self.graph = lifetimes.graph
        self.pivot = pivot
        self.reach_ns = reach_ns
        self.is_small = [size < least_bytes for size in self.graph.sizes]
        in_use = simulate(self.graph, store_all_schedule(self.graph)).timeline_bytes
        self.model = TimedModel(
            lifetimes=lifetimes,
            pivot=pivot,
            budget_bytes=budget_bytes,
            scale=scale_for(self.graph, budget_bytes),
            fixed_bytes=np.array(in_use, dtype=np.float64),
        )
        self.program = self.model.program
        self.times = self.model.times
        self.late_reads: dict[int, list[int]] = {}
        self.last_early_use: dict[int, int] = {}

    def build(self) -> TimedModel:
        self._find_reads()
        for op, times in sorted(self._find_times().items()):
            self._add_runs(op, times)
        for op in range(self.pivot + 1):
            for value in self.lifetimes.writes[op]:
                self._add_value(op, value)
        return self.model

    def _find_reads(self) -> None:
        """When first runs use the values of early ops: last up to the pivot, and each time behind it."""
        for op in range(self.pivot + 1):
            for value in (*self.lifetimes.writes[op], *self.lifetimes.reads[op]):
                self.last_early_use[value] = op
        for op in range(self.pivot + 1, len(self.graph)):
            for value in self.lifetimes.reads[op]:
                if self.graph.producer[value] <= self.pivot:
                    self.late_reads.setdefault(value, []).append(op)

    def _find_times(self) -> dict[int, list[int]]:
        times: dict[int, list[int]] = {}
        for late in range(self.pivot + 1, len(self.graph)):
            for op in self._within_reach(late):
                if late <= self._deadline(op):
                    times.setdefault(op, []).append(late)
        return times

    def _deadline(self, op: int) -> float:
        """The next first run that reads a value of the op."""
        reads = [
            self.late_reads[v][0] for v in self.lifetimes.writes[op] if v in self.late_reads and not self.is_small[v]
        ]
        return min(reads, default=math.inf)

    def _within_reach(self, late: int) -> set[int]:
        """Ops that may have to run again for what `late` reads, in order of the time on the shortest way there."""
        producer = self.graph.producer
        heap = [(0, value) for value in self.lifetimes.reads[late] if producer[value] <= self.pivot]
        heapq.heapify(heap)
        found: set[int] = set()
        while heap and len(found) < _MOST_OPS:
            way_ns, value = heapq.heappop(heap)
            op = producer[value]
            if self.is_small[value] or op in found or not self.lifetimes.may_rerun[op]:
                continue
            reached_ns = way_ns + self.graph.ops[op].time_ns
            if way_ns and reached_ns > self.reach_ns:
                continue
            found.add(op)
            for read in self.lifetimes.reads[op]:
                heapq.heappush(heap, (reached_ns, read))
        return found

    def _add_runs(self, op: int, times: list[int]) -> None:
        cost = self.graph.ops[op].time_ns / self.model.scale.time_unit
        columns = [self.program.add_column(cost=0.0 if k else cost) for k in range(len(times))]
        for earlier, later in itertools.pairwise(columns):
            self._add_row({earlier: 1.0, later: -1.0})
        self.times[op] = times, columns

    def _add_row(self, terms: dict[int, float], *, at_least: float = 0.0) -> None:
        self.program.add_row(list(terms), list(terms.values()), lower=at_least, upper=math.inf)

    def _runs_from(self, op: int, step: int) -> int | None:
        """The column of "runs again at `step` or later"; None for never."""
        if op not in self.times:
            return None
        times, columns = self.times[op]
        position = bisect.bisect_left(times, step)
        return columns[position] if position < len(times) else None

    def _add_value(self, op: int, value: int) -> None:
        """Where the value is in memory behind its last early use."""
        reads = self.late_reads.get(value, [])
        readers = [reader for reader in self.graph.readers[value] if reader in self.times]
        start = self.last_early_use[value] + 1
        if reads:
            self._fix(start, reads[-1] + 1, -self.graph.sizes[value])
        events = sorted({*reads, *(t for o in (op, *readers) if o in self.times for t in self.times[o][0])})
        if self.is_small[value]:
            if events:
                self._fix(start, events[-1] + 1, self.graph.sizes[value])
            return
        for step in events:
            self._add_stretch(value, start, step, readers, is_read=bool(reads) and reads[-1] >= step)
            if step in reads:
                self._fix(step, step + 1, self.graph.sizes[value])
            start = step + 1 if step in reads else step
            for reader in readers:
                self._keep_order(op, reader, step)

    def _fix(self, start: int, end: int, size_bytes: int) -> None:
        self.model.fixed_bytes[start:end] += size_bytes

    def _add_stretch(self, value: int, start: int, end: int, readers: list[int], *, is_read: bool) -> None:
        """The memory that the value takes from step `start` to `end`, where it can be read next."""
        size = self.graph.sizes[value]
        again = self._runs_from(self.graph.producer[value], end)
        if is_read:
            self._fix(start, end, size)
            if again is not None:
                self._add_span(again, start, end, -size)
            return
        causes = sorted({c for reader in readers if (c := self._runs_from(reader, end)) is not None})
        if len(causes) == 1 and again is None:
            self._add_span(causes[0], start, end, size)
        elif causes:
            kept = self.program.add_column()
            for cause in causes:
                self._add_row({kept: 1.0, cause: -1.0} | ({} if again is None else {again: 1.0}))
            self._add_span(kept, start, end, size)

    def _add_span(self, column: int, start: int, end: int, size_bytes: int) -> None:
        if start < end:
            self.model.spans.append(Span(column=column, start=start, end=end, size_bytes=size_bytes))

    def _keep_order(self, op: int, reader: int, step: int) -> None:
        """If the reader runs again before `step`, the op does not run after that."""
        after = self._runs_from(op, step + 1)
        if after is None or step not in self.times[reader][0]:
            return
        terms = {after: -1.0, self.times[reader][1][0]: -1.0}
        later = self._runs_from(reader, step + 1)
        if later is not None:
            terms[later] = 1.0
        self._add_row(terms, at_least=-1.0)
