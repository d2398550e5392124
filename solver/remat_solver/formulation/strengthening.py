"""Cuts at the root: a model's relaxation is solved again and again, and what it violates is added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from remat_solver.engines.base import MixedIntegerProgram
from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.memory_cuts import CutModel
from remat_solver.formulation.range_cuts import RangeCut, add_cut, violated_cuts
from remat_solver.formulation.rounding_cuts import RoundingCut, add_rounding_cut, violated_rounding_cuts

_TIGHT = 1e-6
_LEAST_GAIN = 0.3

Cut = RangeCut | RoundingCut

Relax = Callable[[MixedIntegerProgram], Sequence[float] | None]
"""Solves a program without its integrality; None if it was stopped."""


def strengthen(
    lifetimes: Lifetimes,
    model: CutModel,
    pool: list[Cut],
    relax: Relax,
    *,
    rounds: int = 12,
    per_range: int = 8,
    least_gain: float = _LEAST_GAIN,
    is_lean: bool = False,
) -> int:
    """Adds cuts to `model.program` as rows: those of `pool`, then what its relaxation still violates.

    New cuts join the pool. Cuts that are slack in the end are left out of the program and of the pool, with `is_lean`
    those that are slack in any round. Two rounds that raise the relaxation by less than `least_gain` (model units of
    time, 10,000 to the store-all time) are the last. Returns how many rows were added.
    """
    first_row = model.program.row_count
    cuts = [cut for cut in pool if _add(model, cut)]
    known = set(cuts)
    objectives: list[float] = []
    x: Sequence[float] | None = None
    for _ in range(rounds):
        x = relax(replace(model.program, integer=[False] * model.program.column_count))
        if x is None:
            break
        objectives.append(model.program.price(x))
        if len(objectives) > 2 and objectives[-1] - objectives[-3] < least_gain:
            break
        if is_lean:
            cuts = _drop_slack_rows(model.program, first_row, cuts, x)
            known = set(cuts)
        found: list[Cut] = [*violated_cuts(lifetimes, model, x, per_range=per_range), *violated_rounding_cuts(model, x)]
        added = [cut for cut in found if cut not in known and _add(model, cut)]
        if not added:
            break
        cuts += added
        known.update(added)
    if x is not None:
        cuts = _drop_slack_rows(model.program, first_row, cuts, x)
    pool[:] = cuts
    return model.program.row_count - first_row


def _add(model: CutModel, cut: Cut) -> bool:
    return add_cut(model, cut) if isinstance(cut, RangeCut) else add_rounding_cut(model, cut)


def _drop_slack_rows(program: MixedIntegerProgram, first_row: int, cuts: list[Cut], x: Sequence[float]) -> list[Cut]:
    """Removes the cut rows (from `first_row` on, one per cut) that `x` leaves slack; returns the other cuts."""
    kept: list[Cut] = []
    rows: list[tuple[list[int], list[float], float, float]] = []
    for row, cut in enumerate(cuts, first_row):
        columns, coefficients = program.row_columns[row], program.row_coefficients[row]
        lower, upper = program.row_lower[row], program.row_upper[row]
        activity = sum(coefficient * x[column] for column, coefficient in zip(columns, coefficients, strict=True))
        if activity <= lower + _TIGHT or activity >= upper - _TIGHT:
            kept.append(cut)
            rows.append((columns, coefficients, lower, upper))
    del program.row_lower[first_row:], program.row_upper[first_row:]
    del program.row_columns[first_row:], program.row_coefficients[first_row:]
    for columns, coefficients, lower, upper in rows:
        program.add_row(columns, coefficients, lower=lower, upper=upper)
    return kept
