"""A schedule as a point of a memory-cuts program: what its columns are when read off the schedule."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.memory_cuts import ONE, CutModel, Slot


def embed(lifetimes: Lifetimes, model: CutModel, schedule: Sequence[int]) -> tuple[float, ...]:
    """The columns of `model.program` for `schedule`, in O(K + steps).

    For a schedule of Checkmate's class that fits the budget the point is feasible. Another's may break
    rows of slots (t, v), v < t: whoever uses the point checks it.
    """
    x = [0.0] * model.program.column_count
    places = _places(schedule)
    live = _live_spans(lifetimes, schedule)
    for k, slot in enumerate(model.slots):
        step = bisect_left(places, slot)
        runs = step < len(places) and places[step] == slot
        executed = model.executed[k]
        if runs and executed is not None and executed != ONE:
            x[executed] = 1.0
        for value, column in model.kept[k].items():
            if column != ONE and _is_live(live[value], step, runs=runs):
                x[column] = 1.0
    _mark_reruns(model, schedule, places, x)
    for column, causes in model.implied:
        x[column] = max(x[cause] for cause in causes)
    return tuple(x)


def _places(schedule: Sequence[int]) -> list[Slot]:
    """The slot of each step; ascending for schedules of Checkmate's class, made so for others."""
    places: list[Slot] = []
    stage = 0
    for op in schedule:
        place = (stage, op)
        places.append(max(place, places[-1]) if places else place)
        stage += op == stage
    return places


def _live_spans(lifetimes: Lifetimes, schedule: Sequence[int]) -> list[list[tuple[int, int]]]:
    """For each value the steps (first, last) of each of its copies: from the write to the last read."""
    spans: list[list[tuple[int, int]]] = [[] for _ in lifetimes.graph.sizes]
    for step, op in enumerate(schedule):
        for value in lifetimes.reads[op]:
            spans[value][-1] = (spans[value][-1][0], step)
        for value in lifetimes.writes[op]:
            spans[value].append((step, step))
    return spans


def _is_live(spans: Sequence[tuple[int, int]], step: int, *, runs: bool) -> bool:
    """Whether a copy is in memory during the step, or, if no op of the slot runs, just before it."""
    before = step if runs else step - 1
    return any(first <= before and last >= step for first, last in spans)


def _mark_reruns(model: CutModel, schedule: Sequence[int], places: Sequence[Slot], x: list[float]) -> None:
    for op, place in zip(schedule, places, strict=True):
        if place[0] == op:
            continue
        k = bisect_left(model.slots, place)
        if k < len(model.slots) and model.slots[k] == place:
            continue
        column = model.rerun[k].get(op)
        if column is not None:
            x[column] = 1.0
