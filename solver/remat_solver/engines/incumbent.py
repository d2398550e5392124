"""What is believed of an engine's incumbent: nothing that was not checked here."""

from __future__ import annotations

from collections.abc import Sequence

from remat_solver.engines.base import MixedIntegerProgram
from remat_solver.errors import EngineFailed

TOLERANCE = 1e-5
"""Engines are exact to about 1e-6 in each row, scaled by its largest term."""


def accept_incumbent(
    program: MixedIntegerProgram, x: Sequence[float], *, engine: str
) -> tuple[tuple[float, ...], float]:
    """`x` with its integer columns rounded, and its objective as priced here.

    Raises `EngineFailed` if it breaks a row or a column's bounds by more than the engines' tolerance.
    """
    rounded = tuple(
        float(round(value)) if integer else value for value, integer in zip(x, program.integer, strict=True)
    )
    if not is_feasible(program, rounded):
        raise EngineFailed(
            f"{engine} returned a solution that breaks the model.", hint="Try the other engine.", engine=engine
        )
    return rounded, program.price(rounded)


def is_feasible(program: MixedIntegerProgram, x: Sequence[float]) -> bool:
    """Whether `x` keeps every row and every column's bounds, within `TOLERANCE`."""
    bounds = zip(program.lower, x, program.upper, strict=True)
    if any(not low - TOLERANCE <= value <= high + TOLERANCE for low, value, high in bounds):
        return False
    rows = zip(program.row_lower, program.row_columns, program.row_coefficients, program.row_upper, strict=True)
    for lower, columns, coefficients, upper in rows:
        terms = [coefficient * x[column] for column, coefficient in zip(columns, coefficients, strict=True)]
        slack = TOLERANCE * max(1.0, max(map(abs, coefficients), default=0.0), max(map(abs, terms), default=0.0))
        if not lower - slack <= sum(terms) <= upper + slack:
            return False
    return True
