"""Checkmate's approximation (Jain et al., MLSys 2020, section 5.4): relax, round S, complete R.

The dense program is solved as a linear one with the budget shrunk by some share, S is rounded (by
thresholds, then at random with S as the probability), and R follows: what is missing runs again. The
paper's rounding may exceed the budget; here the simulator decides, and what does not fit is no answer.
The relaxation at the full budget gives the bound.
"""

from __future__ import annotations

import itertools
import random

from remat_solver.engines.base import Limits, Outcome
from remat_solver.formulation.checkmate import DenseModel, build_dense
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.candidates import Candidates

_SHRINKS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_ENOUGH = 0.1
"""The paper's share. Further shrinking only goes on where nothing fits yet."""
_MOST_THRESHOLDS = 30
_RANDOM_DRAWS = 10
_TOLERANCE = 1e-6
_ROUNDING = 1e-4


def lp_rounding(task: Task) -> Found:
    """Rounds the relaxation; the bound holds for Checkmate's class of schedules.

    Raises `InfeasibleBudget` where the relaxation proves it, `NoPlanInTime` where no rounding fits,
    `SolveCancelled` or an `EngineError`.
    """
    candidates = Candidates(task, "lp_rounding")
    engine = task.find_engine()
    bound_ns = task.graph.total_time_ns
    rows = columns = rounds = 0
    for shrink in _SHRINKS:
        if task.is_over() or (shrink > _ENOUGH and candidates.schedule is not None):
            break
        model = _relaxation(task, round(task.budget_bytes * (1 - shrink)))
        outcome = _solve(task, model)
        rounds += 1
        if not shrink:
            rows, columns = model.program.row_count, model.program.column_count
            if outcome.termination == "infeasible":
                raise task.infeasible(proof_scope="checkmate")
            bound_ns = max(bound_ns, model.bound_ns(task.graph, outcome.bound))
        if outcome.x is None:
            break
        _round(candidates, model, outcome.x)
        task.report(
            bound_ns=bound_ns,
            incumbent_ns=candidates.time_ns if candidates.schedule is not None else None,
            stage=f"shrink {shrink:g}",
        )
    return candidates.best(
        bound_ns=bound_ns,
        proof_scope="checkmate",
        engine=engine.name,
        engine_version=engine.version(),
        rounds=rounds,
        rows=rows,
        columns=columns,
        stopped_by=task.stopped_by(),
    )


def _relaxation(task: Task, budget_bytes: int) -> DenseModel:
    model = build_dense(task.graph, budget_bytes, absent=task.absent_at_boundary, boundary=task.boundary)
    model.program.integer = [False] * model.program.column_count
    return model


def _solve(task: Task, model: DenseModel) -> Outcome:
    limits = Limits(time_limit_s=task.remaining_s(), threads=task.options.threads)
    return task.find_engine().solve(model.program, limits, should_stop=task.stop_requested)


def _round(candidates: Candidates, model: DenseModel, x: tuple[float, ...]) -> None:
    """Offers the schedules of every rounding of S; the random ones are the same in every run."""
    for threshold in _thresholds(model, x):
        candidates.offer_retention(_kept(candidates, model, x, [threshold]))
    rng = random.Random(0)
    for _ in range(_RANDOM_DRAWS):
        if candidates.task.is_over():
            return
        thresholds = [1 - rng.random() for _ in range(997)]  # a prime: stages do not repeat each other's draws
        candidates.offer_retention(_kept(candidates, model, x, thresholds))


def _thresholds(model: DenseModel, x: tuple[float, ...]) -> list[float]:
    """The shares that occur in S, thinned out evenly: between two of them every threshold rounds alike."""
    shares = sorted({round(x[column], 4) for kept in model.kept for column in kept.values() if x[column] > _TOLERANCE})
    step = max(1.0, len(shares) / _MOST_THRESHOLDS)
    return [shares[int(position * step)] for position in range(min(len(shares), _MOST_THRESHOLDS))]


def _kept(
    candidates: Candidates, model: DenseModel, x: tuple[float, ...], thresholds: list[float]
) -> dict[int, frozenset[int]]:
    """By stage, the volatile values whose share in S reaches their threshold (they take turns)."""
    lifetimes = candidates.lifetimes
    levels = itertools.cycle(thresholds)
    return {
        stage: frozenset(
            value
            for value, column in kept.items()
            if x[column] >= next(levels) - _ROUNDING
            and not lifetimes.is_lasting[value]
            and lifetimes.last_use[value] >= stage
        )
        for stage, kept in enumerate(model.kept)
        if stage
    }
