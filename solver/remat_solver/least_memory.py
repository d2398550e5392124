"""The other direction: the least peak, with or without an allowance of time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_solver.bounds import working_set_bound
from remat_solver.errors import InfeasibleBudget, NoPlanInTime, StrategyNotApplicable
from remat_solver.graph import Graph
from remat_solver.options import Progress, SolveOptions
from remat_solver.plan import Plan, ProofScope
from remat_solver.preparation import make_task, referee, resolve_options
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.memory_cuts import Knowledge, search


@dataclass(frozen=True, kw_only=True)
class MinimumBudget:
    """The answer of `minimum_budget`.

    No budget below `proven_infeasible_below_bytes` has a plan (proof scope: `proof_scope`); `plan` has
    the least peak found.
    """

    proven_infeasible_below_bytes: int
    plan: Plan
    proof_scope: ProofScope = "order"


@dataclass(frozen=True, kw_only=True)
class LeastMemory:
    """The schedule with the least peak found, and the bytes below which there is none (within `proof_scope`)."""

    found: Found
    peak_bytes: int
    bound_bytes: int
    proof_scope: ProofScope


def minimum_budget(
    graph: Graph,
    options: SolveOptions | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **option_fields: Any,
) -> MinimumBudget:
    """The least budget that has a plan, with the proof that there is none below, and that plan.

    The plan is the fastest one found at that budget. Half of `time_limit_s` at most goes into the
    budget, the rest into the plan's time. Raises the errors of `solve`.
    """
    asked = resolve_options(options, {"budget_fraction": 1.0, **option_fields})
    asked.refuse_reorder("minimum_budget")
    store_all_peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    task = make_task(graph, asked, store_all_peak, on_progress=on_progress, should_stop=should_stop)
    knowledge = Knowledge()
    half = dataclasses.replace(task, deadline_s=task.started_s + asked.time_limit_s / 2)
    least = find_least_memory(half, knowledge, allowance_ns=None)
    own = dataclasses.replace(task, budget_bytes=least.peak_bytes)
    found = least.found if own.is_over() else search(own, knowledge)
    return MinimumBudget(
        proven_infeasible_below_bytes=least.bound_bytes,
        plan=referee(graph, own, found),
        proof_scope=least.proof_scope,
    )


def solve_for_memory(
    graph: Graph,
    options: SolveOptions,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Plan:
    """The plan with the least peak among those that take at most `max_overhead` longer than store-all."""
    assert options.max_overhead is not None
    if options.strategy != "memory_cuts":
        raise StrategyNotApplicable(
            f"strategy {options.strategy!r} can't minimise memory.", hint="Use memory_cuts, or give a budget."
        )
    store_all_peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    task = make_task(graph, options, store_all_peak, on_progress=on_progress, should_stop=should_stop)
    allowance_ns = int(graph.total_time_ns * (1 + options.max_overhead))
    least = find_least_memory(task, Knowledge(), allowance_ns=allowance_ns)
    own = dataclasses.replace(task, budget_bytes=least.peak_bytes)
    found = dataclasses.replace(least.found, bound_ns=graph.total_time_ns, proof_scope=least.proof_scope)
    return referee(graph, own, found, objective="memory", bound_bytes=least.bound_bytes)


def find_least_memory(task: Task, knowledge: Knowledge, *, allowance_ns: int | None) -> LeastMemory:
    """Bisects the budget down from `task.budget_bytes`; a schedule may take at most `allowance_ns` (None: any time).

    At each budget the search ends with the first schedule within the allowance, or with the proof
    that there is none. What it can't settle in its share of the time counts as neither: the gap between
    `peak_bytes` and `bound_bytes` stays open. Raises the errors of a solve if the first budget has no plan.
    """
    target_ns = allowance_ns if allowance_ns is not None else sum(op.time_ns for op in task.graph.ops) * 10**6
    tolerance = int(task.options.gap * task.budget_bytes)
    best = search(task, knowledge, target_ns=target_ns)
    peak = simulate(task.graph, best.schedule).peak_bytes
    bound: int = working_set_bound(task.graph)
    scope: ProofScope = "order"
    unsettled = bound
    guess = bound
    while peak - max(bound, unsettled) > tolerance and not task.is_over():
        now = time.monotonic()
        share_s = max(task.remaining_s() / 4, 0.05)
        own = dataclasses.replace(
            task, budget_bytes=guess, started_s=now, deadline_s=min(task.deadline_s, now + share_s)
        )
        try:
            found = search(own, knowledge, target_ns=target_ns)
        except InfeasibleBudget as error:
            bound = error.fields["proven_infeasible_below_bytes"]
            scope = error.fields["proof_scope"] if scope == "order" else scope
        except NoPlanInTime:
            unsettled = guess + 1
        else:
            if sum(task.graph.ops[op].time_ns for op in found.schedule) <= target_ns:
                best, peak = found, simulate(task.graph, found.schedule).peak_bytes
            else:
                unsettled = guess + 1
        guess = (max(bound, unsettled) + peak) // 2
    return LeastMemory(found=best, peak_bytes=peak, bound_bytes=bound, proof_scope=scope)
