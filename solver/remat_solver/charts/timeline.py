"""Memory in use over compute time, as what a chart draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat_solver.graph import Graph
from remat_solver.plan import Plan
from remat_solver.simulate import simulate, store_all_schedule

MAX_POINTS = 1500


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Memory in use over compute time: `start_ms[i]` is when the step that holds `in_use_bytes[i]` starts."""

    label: str
    budget_bytes: int | None
    start_ms: tuple[float, ...]
    in_use_bytes: tuple[int, ...]


def store_all_timeline(graph: Graph) -> Timeline:
    """The timeline without recomputation."""
    return _timeline(graph, store_all_schedule(graph), "store-all", None)


def plan_timeline(graph: Graph, plan: Plan, label: str) -> Timeline:
    """The timeline under a plan."""
    return _timeline(graph, plan.schedule, label, plan.budget_bytes)


def _timeline(graph: Graph, schedule: Sequence[int], label: str, budget_bytes: int | None) -> Timeline:
    in_use = simulate(graph, schedule, any_order=True).timeline_bytes
    starts = [0, *accumulate(graph.ops[op].time_ns for op in schedule)][:-1]
    highest: dict[float, int] = {}
    for step in _keep_peaks(in_use):
        moment_ms = round(starts[step] / 1e6, 6)  # ops that take no time share a moment: draw the highest
        highest[moment_ms] = max(in_use[step], highest.get(moment_ms, 0))
    return Timeline(
        label=label,
        budget_bytes=budget_bytes,
        start_ms=tuple(highest),
        in_use_bytes=tuple(highest.values()),
    )


def _keep_peaks(in_use: Sequence[int]) -> list[int]:
    """Steps to draw: all of them, or the lowest and highest of each bucket, so that no peak is lost."""
    if len(in_use) <= MAX_POINTS:
        return list(range(len(in_use)))
    width = -(-2 * len(in_use) // MAX_POINTS)
    kept: set[int] = set()
    for start in range(0, len(in_use), width):
        bucket = range(start, min(start + width, len(in_use)))
        kept.add(min(bucket, key=in_use.__getitem__))
        kept.add(max(bucket, key=in_use.__getitem__))
    return sorted(kept)
