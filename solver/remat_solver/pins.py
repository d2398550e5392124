"""Pins: ops that must never be recomputed, and ops whose values must not cross into the backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from remat_solver.errors import InvalidPlan, InvalidRequest, StrategyNotApplicable
from remat_solver.graph import Graph
from remat_solver.options import matching_ops


class Pinned(Protocol):
    """A graph with `keep` pins applied, and what `recompute` pins ask at the boundary before op `boundary`."""

    @property
    def graph(self) -> Graph:
        """Ops pinned as keep are not recomputable."""
        ...

    @property
    def absent_at_boundary(self) -> frozenset[int]:
        """The ops none of whose values may cross the boundary in memory."""
        ...

    @property
    def boundary(self) -> int | None:
        """The first backward op; None without `recompute` pins."""
        ...


@dataclass(frozen=True, kw_only=True)
class PinnedGraph:
    """What `apply_pins` makes (see `Pinned`)."""

    graph: Graph
    absent_at_boundary: frozenset[int]
    boundary: int | None


def apply_pins(graph: Graph, *, keep: tuple[str, ...], recompute: tuple[str, ...]) -> PinnedGraph:
    """Op names to pins. Ops, values and their numbers stay as they are, so that schedules need no way back.

    A `recompute` pattern passes over the ops that may not be recomputed (running statistics, say), unless it names
    one. Raises `InvalidRequest` for a pattern that matches nothing or pins that contradict each other, and
    `StrategyNotApplicable` for `recompute` pins on a graph without phases.
    """
    kept = matching_ops(graph, keep)
    absent = matching_ops(graph, recompute)
    boundary = boundary_of(graph) if absent else None
    both = kept & absent
    if both:
        raise InvalidRequest(f"op {graph.ops[min(both)].name!r} is pinned both as keep and as recompute.", field="keep")
    if boundary is not None:
        absent = _barred(graph, absent, boundary, named=frozenset(recompute))
    if kept:
        ops = tuple(
            dataclasses.replace(op, recomputable=False) if index in kept else op for index, op in enumerate(graph.ops)
        )
        graph = dataclasses.replace(graph, ops=ops)
    return PinnedGraph(graph=graph, absent_at_boundary=absent, boundary=boundary)


def check_pins(pinned: Pinned, schedule: Sequence[int]) -> None:
    """Raises `InvalidPlan` if a schedule that can run breaks a pin."""
    graph = pinned.graph
    latest: dict[int, int] = {}
    boundary_step = len(schedule)
    for step, op in enumerate(schedule):
        if op in latest and not graph.ops[op].recomputable:
            raise InvalidPlan(f"step {step} recomputes op {op}, which is pinned as keep.", step=step)
        for value in graph.ops[op].reads:
            producer = graph.producer[value]
            is_pinned = producer in pinned.absent_at_boundary and not graph.is_output[value]
            if is_pinned and graph.sizes[value] and latest[producer] <= boundary_step < step:
                raise InvalidPlan(f"step {step} reads value {value}, pinned as recompute, from memory.", step=step)
        if pinned.boundary is not None and op == pinned.boundary - 1 and op not in latest:
            boundary_step = step
        latest[op] = step


def keeps_pins(pinned: Pinned, schedule: Sequence[int]) -> bool:
    """Whether a schedule that can run keeps the pins."""
    try:
        check_pins(pinned, schedule)
    except InvalidPlan:
        return False
    return True


def boundary_of(graph: Graph) -> int:
    """The first backward op; raises `StrategyNotApplicable` where no op has that phase."""
    for index, op in enumerate(graph.ops):
        if op.phase == "backward":
            return index
    raise StrategyNotApplicable(
        "recompute pins need to know where the backward pass begins, and no op of the graph has that phase.",
        hint="Capture the graph again, or drop the recompute pins.",
        field="recompute",
    )


def _barred(graph: Graph, ops: frozenset[int], boundary: int, *, named: frozenset[str]) -> frozenset[int]:
    """The pinned ops before the boundary whose values would be of use behind it.

    That is so for values which only forward ops read, too: those ops may run again.
    """
    found = set()
    for index in ops:
        op = graph.ops[index]
        read = [value for value in graph.written_by(index) if graph.readers[value] and not graph.is_output[value]]
        if index >= boundary or not read:
            continue
        if op.recomputable:
            found.add(index)
        elif op.name in named and any(graph.readers[value][-1] >= boundary for value in read):
            raise InvalidRequest(f"op {op.name!r} is pinned as recompute but may not be recomputed.", field="recompute")
    return frozenset(found)
