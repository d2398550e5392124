"""Drops what a schedule computes for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from remat_solver.formulation.lifetimes import Lifetimes


def drop_unused(lifetimes: Lifetimes, schedule: Sequence[int]) -> list[int]:
    """The schedule without recomputes whose values nothing reads; its peak is no larger."""
    graph = lifetimes.graph
    first_step: dict[int, int] = {}
    for step, op in enumerate(schedule):
        first_step.setdefault(op, step)
    is_wanted = [False] * len(graph.sizes)
    kept: list[int] = []
    for step in range(len(schedule) - 1, -1, -1):
        op = schedule[step]
        writes = lifetimes.writes[op]
        if first_step[op] != step and not any(is_wanted[value] for value in writes):
            continue
        kept.append(op)
        for value in writes:
            is_wanted[value] = False
        for value in lifetimes.reads[op]:
            is_wanted[value] = True
    kept.reverse()
    return kept
