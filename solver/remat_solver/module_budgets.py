"""Budgets of modules: at most so many bytes of a module's values held from the forward into the backward.

Which values to give up is found by asking: the plan for the whole budget is made; while a module holds more than it
may, those of its held values that are cheapest to make again, for their bytes, are pinned as `recompute`, and the
question is asked anew. What comes out keeps every budget. Its bound is proven for the question with those pins: another
choice of pins might be faster.
"""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Callable, Mapping, Sequence

from remat_solver.budget import format_bytes, parse_bytes
from remat_solver.errors import NoPlanInTime
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions, matching_ops
from remat_solver.pins import boundary_of
from remat_solver.plan import Plan

Ask = Callable[[Graph, SolveOptions], Plan]
"""Who answers a question: the embedded solver, or a service."""


def solve_within(graph: Graph, options: SolveOptions, module_budgets: Mapping[str, int], ask: Ask) -> Plan:
    """A plan in which the modules hold at most `module_budgets` (bytes by name pattern) for the backward.

    Each round of asking may take the whole time limit; one to three are usual.

    Raises what `ask` raises, `InvalidRequest` for a pattern that matches no op, and `NoPlanInTime` where
    a module's values that can't be recomputed are too many.
    """
    modules = {pattern: matching_ops(graph, (pattern,)) for pattern in module_budgets}
    kept = matching_ops(graph, options.keep)
    pinned: set[int] = set()
    while True:
        names = tuple(glob.escape(graph.ops[op].name) for op in sorted(pinned))
        plan = ask(graph, dataclasses.replace(options, recompute=(*options.recompute, *names)))
        held = held_for_backward(graph, plan.schedule)
        fits = True
        for pattern, ops in modules.items():
            own = [value for value in held if graph.producer[value] in ops]
            excess = sum(graph.sizes[value] for value in own) - module_budgets[pattern]
            if excess > 0:
                fits = False
                pinned |= _cheapest(graph, own, kept, excess, pattern)
        if fits:
            return plan


def held_for_backward(graph: Graph, schedule: Sequence[int]) -> list[int]:
    """The values that are made before the boundary and read behind it without being made again."""
    boundary = boundary_of(graph)
    split = next(step for step, op in enumerate(schedule) if op == boundary - 1)
    is_old: dict[int, bool] = {}
    held: set[int] = set()
    for step, op in enumerate(schedule):
        if step > split:
            held.update(value for value in graph.ops[op].reads if is_old[value])
        for value in graph.written_by(op):
            is_old[value] = step <= split
    return sorted(held)


def read_module_budgets(texts: Mapping[str, str | int]) -> dict[str, int]:
    """Bytes by pattern, from "2GiB" and the like; raises `InvalidRequest`."""
    return {pattern: parse_bytes(text, field="module_budgets") for pattern, text in texts.items()}


def _cheapest(graph: Graph, held: list[int], kept: frozenset[int], excess: int, pattern: str) -> set[int]:
    """The producers of held values to be made again: the least time for each byte, until the excess is covered."""
    freed: dict[int, int] = {}
    for value in held:
        op = graph.producer[value]
        if graph.ops[op].recomputable and op not in kept and not graph.is_output[value]:
            freed[op] = freed.get(op, 0) + graph.sizes[value]
    chosen: list[int] = []
    for op in sorted((op for op in freed if freed[op]), key=lambda op: graph.ops[op].time_ns / freed[op]):
        if sum(freed[other] for other in chosen) >= excess:
            break
        chosen.append(op)
    total = sum(freed[op] for op in chosen)
    if total < excess:
        raise NoPlanInTime(
            f"no plan was found in which {pattern!r} holds {format_bytes(excess - total)} less: the rest of what it "
            "holds for the backward can't be recomputed.",
            hint="Raise the budget of that module.",
        )
    for op in sorted(chosen, key=lambda op: -freed[op]):  # the last one may have made an earlier one superfluous
        if total - freed[op] >= excess:
            chosen.remove(op)
            total -= freed[op]
    return set(chosen)
