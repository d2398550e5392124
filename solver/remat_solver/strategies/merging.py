"""Makes a schedule faster without asking any engine: keeps values instead of recomputing them where that fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.simulate import simulate
from remat_solver.strategies.cleaning import drop_unused
from remat_solver.strategies.timeline import Timeline

_MAX_PASSES = 6


def merge_recomputes(
    lifetimes: Lifetimes, schedule: Sequence[int], budget_bytes: int, *, should_stop: Callable[[], bool]
) -> list[int]:
    """Keeps values instead of recomputing them where that fits, costliest recompute first.

    The schedule must fit within `budget_bytes`; so does the result, which never takes longer.
    """
    current = list(schedule)
    for _ in range(_MAX_PASSES):
        merged = drop_unused(lifetimes, _merge_once(lifetimes, current, budget_bytes, should_stop))
        if len(merged) == len(current):
            break
        current = merged
    return current


def _merge_once(
    lifetimes: Lifetimes, schedule: list[int], budget_bytes: int, should_stop: Callable[[], bool]
) -> list[int]:
    """One pass over the recomputes, costliest first, on a timeline that is kept an upper bound."""
    timeline = Timeline(simulate(lifetimes.graph, schedule).timeline_bytes)
    history = _History(lifetimes, schedule)
    ops = lifetimes.graph.ops
    recomputes = [step for step, before in enumerate(history.previous_run) if before is not None]
    recomputes.sort(key=lambda step: (-ops[schedule[step]].time_ns, step))
    for count, step in enumerate(recomputes):
        if count % 64 == 0 and should_stop():
            break
        extensions = history.extensions(step)
        if _fits(timeline, extensions, budget_bytes):
            for start, end, size in extensions:
                timeline.raise_by(start, end, size)
            history.remove(step)
    return [op for step, op in enumerate(schedule) if step not in history.removed]


def _fits(timeline: Timeline, extensions: list[tuple[int, int, int]], budget_bytes: int) -> bool:
    """Whether the extensions (from step, to step, bytes), all at once, stay within the budget."""
    if len(extensions) == 1:
        start, end, size = extensions[0]
        return start >= end or timeline.highest(start, end) + size <= budget_bytes
    edges = sorted({edge for start, end, _ in extensions for edge in (start, end)})
    for low, high in itertools.pairwise(edges):
        added = sum(size for start, end, size in extensions if start <= low and high <= end)
        if added and timeline.highest(low, high) + added > budget_bytes:
            return False
    return True


class _History:
    """The runs of each op and the reads of each copy, kept up to date as recomputes are removed."""

    def __init__(self, lifetimes: Lifetimes, schedule: list[int]) -> None:
        self.lifetimes = lifetimes
        self.schedule = schedule
        self.previous_run: list[int | None] = []
        self.next_run: list[int | None] = [None] * len(schedule)
        self.last_read: dict[tuple[int, int], int] = {}
        self.removed: set[int] = set()
        latest: dict[int, int] = {}
        producer = lifetimes.graph.producer
        for step, op in enumerate(schedule):
            for value in lifetimes.reads[op]:
                self.last_read[latest[producer[value]], value] = step
            before = latest.get(op)
            self.previous_run.append(before)
            if before is not None:
                self.next_run[before] = step
            latest[op] = step

    def extensions(self, step: int) -> list[tuple[int, int, int]]:
        """(from, to, bytes): how much longer which values must stay if the recompute at `step` is left out."""
        op = self.schedule[step]
        before = self.previous_run[step]
        assert before is not None
        found = []
        for value in self.lifetimes.writes[op]:
            if (step, value) in self.last_read:
                last_read = self.last_read.get((before, value), before)
                found.append((last_read + 1, step, self.lifetimes.graph.sizes[value]))
        return found

    def remove(self, step: int) -> None:
        before, after = self.previous_run[step], self.next_run[step]
        assert before is not None
        self.removed.add(step)
        self.next_run[before] = after
        if after is not None:
            self.previous_run[after] = before
        for value in self.lifetimes.writes[self.schedule[step]]:
            last_read = self.last_read.get((step, value))
            if last_read is not None:
                self.last_read[before, value] = last_read
