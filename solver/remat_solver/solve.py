"""Entry points of the planner: `solve`, `frontier`, `minimum_budget`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from remat_solver.bounds import working_set_bound
from remat_solver.errors import InfeasibleBudget, NoPlanInTime
from remat_solver.frontier import frontier
from remat_solver.graph import Graph
from remat_solver.least_memory import MinimumBudget, minimum_budget, solve_for_memory
from remat_solver.options import Progress, SolveOptions
from remat_solver.plan import Plan
from remat_solver.preparation import make_task, referee, resolve_options, strategy_named
from remat_solver.reordering import Reordering, worthwhile_order
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.base import Task

__all__ = ["MinimumBudget", "frontier", "minimum_budget", "solve"]


def solve(
    graph: Graph,
    options: SolveOptions | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **option_fields: Any,
) -> Plan:
    """The plan that `options` (or the fields of `SolveOptions` given by name) ask for, refereed.

    `on_progress` is told of every better bound or schedule. `should_stop` is polled often; once it
    returns True the best plan so far is returned, with `provenance.stopped_by == "caller"`.

    With `reorder` the plan may run the ops in another order than the graph's, if that lowers the peak by 1%; bound and
    `proof_scope` are then about that order. Where it has no plan the graph's own order is tried, and an infeasibility
    is about that.

    Raises `InvalidRequest` for a question that makes no sense, `InfeasibleBudget` with its proof,
    `NoPlanInTime` if the time limit came before any plan, `SolveCancelled` if the caller did, and
    `EngineError` if the engine is missing or fails.
    """
    asked = resolve_options(options, option_fields)
    store_all_peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    budget_bytes = asked.budget_in_bytes(store_all_peak)
    if budget_bytes is None:
        return solve_for_memory(graph, asked, on_progress=on_progress, should_stop=should_stop)
    started_s = time.monotonic()

    def plan_in_order(reordering: Reordering | None) -> Plan:
        task = make_task(
            reordering.graph if reordering else graph,
            asked,
            budget_bytes,
            on_progress=on_progress,
            should_stop=should_stop,
            started_s=started_s,
        )
        return _plan_of_task(graph, task, store_all_peak, reordering)

    if asked.reorder:
        reordering = worthwhile_order(
            graph, budget_bytes=budget_bytes, time_limit_s=asked.time_limit_s, should_stop=should_stop
        )
        if reordering is not None:
            with contextlib.suppress(InfeasibleBudget):
                return plan_in_order(reordering)
    return plan_in_order(None)


def _plan_of_task(graph: Graph, task: Task, store_all_peak: int, reordering: Reordering | None) -> Plan:
    bound = working_set_bound(task.graph)
    try:
        if task.budget_bytes < bound:
            raise task.infeasible(proof_scope="order", below_bytes=bound)
        found = strategy_named(task.options.strategy)(task)
    except (InfeasibleBudget, NoPlanInTime) as error:
        is_known = error.fields.get("known_feasible_bytes") is not None
        if not is_known and not task.absent_at_boundary and task.budget_bytes < store_all_peak:
            error.fields["known_feasible_bytes"] = store_all_peak
        raise
    return referee(graph, task, found, reordering=reordering)
