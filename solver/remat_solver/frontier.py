"""Plans over a range of budgets: what each byte of memory costs in time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from remat_solver.errors import InfeasibleBudget, InvalidRequest, NoPlanInTime, SolveCancelled
from remat_solver.graph import Graph
from remat_solver.least_memory import find_least_memory
from remat_solver.options import Progress, SolveOptions
from remat_solver.plan import Plan, referee_plan
from remat_solver.preparation import make_task, referee, resolve_options
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.memory_cuts import Knowledge, search

MAX_POINTS = 1000


def frontier(
    graph: Graph,
    points: int = 12,
    *,
    options: SolveOptions | None = None,
    on_point: Callable[[Plan], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **option_fields: Any,
) -> tuple[Plan, ...]:
    """Plans for `points` budgets, evenly spaced from the least known feasible one to the store-all peak.

    Ascending in budget, and monotone: a larger budget never has a slower plan. Each carries its own
    bound. `time_limit_s` is for the whole frontier. `on_point` gets each plan as it is found, from the
    largest budget down. Slots and schedules are shared between neighbours. A budget for which no plan was
    found in time is left out; once `should_stop` returns True so are those that were not begun.

    Raises `InvalidRequest`, and the errors of `solve` where not even one plan was found.
    """
    if not 2 <= points <= MAX_POINTS:
        raise InvalidRequest(f"a frontier of {points} points makes no sense: 2 to {MAX_POINTS}.", field="points")
    asked = resolve_options(options, {"budget_fraction": 1.0, **option_fields})
    asked.refuse_reorder("a frontier")
    deadline_s = time.monotonic() + asked.time_limit_s
    store_all_peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    task = make_task(graph, asked, store_all_peak, on_progress=on_progress, should_stop=should_stop)
    knowledge = Knowledge()
    quarter = dataclasses.replace(task, deadline_s=time.monotonic() + asked.time_limit_s / 4)
    least = find_least_memory(quarter, knowledge, allowance_ns=None)
    plans: list[Plan] = []
    for point in range(points):
        budget_bytes = store_all_peak - (store_all_peak - least.peak_bytes) * point // (points - 1)
        now = time.monotonic()
        share_s = max(0.0, deadline_s - now) / (points - point)
        own = dataclasses.replace(task, budget_bytes=budget_bytes, started_s=now, deadline_s=now + share_s)
        try:
            found = search(own, knowledge)
        except (NoPlanInTime, InfeasibleBudget, SolveCancelled):
            if point == 0:
                raise
            continue
        plans.append(referee(graph, own, found))
        if on_point is not None:
            on_point(plans[-1])
        if task.stop_requested():
            break
    return make_monotone(graph, plans)


def make_monotone(graph: Graph, plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """The plans by ascending budget, each with the best schedule and bound that any of them gives it.

    A schedule that fits a smaller budget fits a larger one, and a bound for a larger budget holds for a
    smaller one (if its proof covers the same class).
    """
    ordered = sorted(plans, key=lambda plan: plan.budget_bytes)
    faster: list[Plan] = []
    for plan in ordered:
        best = plan
        if faster and faster[-1].time_ns < plan.time_ns:
            best = _restate(graph, plan, faster[-1].schedule, plan.bound_ns)
        faster.append(best)
    for index in range(len(faster) - 2, -1, -1):
        larger, plan = faster[index + 1], faster[index]
        if larger.bound_ns > plan.bound_ns and larger.proof_scope == "order":
            faster[index] = _restate(graph, plan, plan.schedule, larger.bound_ns)
    return tuple(faster)


def _restate(graph: Graph, plan: Plan, schedule: tuple[int, ...], bound_ns: int) -> Plan:
    return referee_plan(
        graph,
        schedule,
        budget_bytes=plan.budget_bytes,
        bound_ns=bound_ns,
        proof_scope=plan.proof_scope,
        provenance=plan.provenance,
    )
