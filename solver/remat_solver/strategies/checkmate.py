"""The reference strategy: Checkmate's own program in one piece (see `formulation.checkmate`). Slow beyond ~200 ops."""

from __future__ import annotations

import math

from remat_solver.bounds import working_set_bound
from remat_solver.engines.base import Engine, Limits, Outcome
from remat_solver.errors import EngineFailed
from remat_solver.formulation.checkmate import DenseModel, build_dense
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.simulate import simulate
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.cleaning import drop_unused

_MOST_RETRIES = 4
_MARGIN = 2e-6
"""Twice the engines' tolerance, in model units of memory: what a retry leaves free at least."""


def checkmate(task: Task) -> Found:
    """Solves the dense program once; the proof holds for Checkmate's class of schedules.

    Engines keep rows up to about 1e-6 of a model unit (8 bytes at a budget of 128 GiB). Should a schedule
    exceed the budget by that, the program is solved again with a little less memory; the bound stays
    that of the first.
    Raises `InfeasibleBudget` with its proof, `NoPlanInTime`, `SolveCancelled` or an `EngineError`.
    """
    bound_bytes = working_set_bound(task.graph)
    if task.budget_bytes < bound_bytes:
        raise task.infeasible(proof_scope="order", below_bytes=bound_bytes)
    lifetimes = find_lifetimes(task.graph)
    engine = task.find_engine()
    bound_ns = task.graph.total_time_ns
    room_bytes = task.budget_bytes
    for attempt in range(_MOST_RETRIES):
        model = _build(task, room_bytes)
        outcome = _solve(task, model)
        if attempt == 0:
            if outcome.termination == "infeasible":
                raise task.infeasible(proof_scope="checkmate")
            bound_ns = max(bound_ns, model.bound_ns(task.graph, outcome.bound))
        if outcome.termination == "infeasible":
            break
        if outcome.x is None:
            raise task.no_plan()
        schedule = drop_unused(lifetimes, model.schedule(outcome.x))
        excess = simulate(task.graph, schedule).peak_bytes - task.budget_bytes
        if excess <= 0:
            return _found(
                task, engine, model, schedule, bound_ns, attempt + 1, is_done=outcome.termination == "optimal"
            )
        room_bytes = task.budget_bytes - max(excess, math.ceil(_MARGIN * model.memory_unit * 10**attempt))
    raise EngineFailed(
        f"{engine.name} can't tell the budget from one a few bytes smaller, and its schedule needs a few more.",
        hint="Try a budget a few KiB larger or smaller.",
        engine=engine.name,
    )


def _found(
    task: Task, engine: Engine, model: DenseModel, schedule: list[int], bound_ns: int, rounds: int, *, is_done: bool
) -> Found:
    return Found(
        schedule=tuple(schedule),
        bound_ns=bound_ns,
        proof_scope="checkmate",
        engine=engine.name,
        engine_version=engine.version(),
        rounds=rounds,
        rows=model.program.row_count,
        columns=model.program.column_count,
        stopped_by="" if is_done else task.stopped_by() or "time limit",
    )


def _build(task: Task, budget_bytes: int) -> DenseModel:
    return build_dense(task.graph, budget_bytes, absent=task.absent_at_boundary, boundary=task.boundary)


def _solve(task: Task, model: DenseModel) -> Outcome:
    limits = Limits(
        time_limit_s=task.remaining_s(),
        absolute_gap=task.options.gap * task.graph.total_time_ns / model.time_unit,
        threads=task.options.threads,
    )

    def report(objective: float, bound: float) -> None:
        total = task.graph.total_time_ns
        incumbent = total + round(objective * model.time_unit) if math.isfinite(objective) else None
        floor = total + math.floor(max(bound, 0.0) * model.time_unit) if math.isfinite(bound) else total
        task.report(bound_ns=floor, incumbent_ns=incumbent, stage="dense")

    return task.find_engine().solve(model.program, limits, should_stop=task.stop_requested, on_incumbent=report)
