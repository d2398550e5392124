"""PuLP, and the only file that knows it: models as `LpProblem`, its statuses, its bundled CBC.

PuLP writes the model and reads CBC's answer; the process in between is ours (`supervised.py`),
because PuLP's own has no watchdog, loses the incumbent when stopped and discards the bound.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pulp
from pulp import constants

from remat_solver.engines.base import MixedIntegerProgram

MAX_COLUMNS = 250
"""PuLP takes four times as long to write a model as `mps.py`, which takes over beyond this size (12 ms)."""


def bundled_cbc() -> str | None:
    """The program that ships inside PuLP, or None (PuLP 4 ships none)."""
    command = getattr(pulp, "PULP_CBC_CMD", None)
    path = str(getattr(command, "pulp_cbc_path", "")) if command else ""
    return shutil.which(os.path.normpath(path)) if path else None


class PulpModel:
    """One program as a PuLP problem, written to `folder` for CBC."""

    def __init__(self, program: MixedIntegerProgram, folder: Path) -> None:
        self.model_path = folder / "model.mps"
        self._problem, self._variables = _build(program)
        # PuLP leaves out columns that stand in no row and cost nothing: any value within their bounds will do.
        self._unused = [min(max(0.0, low), high) for low, high in zip(program.lower, program.upper, strict=True)]
        self._ordered, self._column_names, self._row_names, _ = self._problem.writeMPS(str(self.model_path), rename=1)

    def write_start(self, path: Path, start: tuple[float, ...]) -> None:
        """Writes the solution from which CBC starts."""
        for variable, value in zip(self._variables, start, strict=True):
            variable.varValue = value
        pulp.COIN_CMD().writesol(str(path), self._problem, self._ordered, self._column_names, self._row_names)

    def read_solution(self, path: Path) -> tuple[float, ...] | None:
        """The columns' values in CBC's solution file, or None if it holds no incumbent."""
        status, values, *_, solution_status = pulp.COIN_CMD().readsol_MPS(
            str(path), self._problem, self._ordered, self._column_names, self._row_names
        )
        if status == constants.LpStatusInfeasible or solution_status not in (
            constants.LpSolutionOptimal,
            constants.LpSolutionIntegerFeasible,
        ):
            return None
        return tuple(values.get(v.name, default) for v, default in zip(self._variables, self._unused, strict=True))


def _build(program: MixedIntegerProgram) -> tuple[Any, list[Any]]:
    problem = pulp.LpProblem("remat", pulp.LpMinimize)
    variables = [
        problem.add_variable(
            f"c{column}",
            lowBound=_finite(program.lower[column]),
            upBound=_finite(program.upper[column]),
            cat=pulp.LpInteger if program.integer[column] else pulp.LpContinuous,
        )
        for column in range(program.column_count)
    ]
    costs = zip(variables, program.cost, strict=True)
    problem.setObjective(pulp.LpAffineExpression([(variable, cost) for variable, cost in costs if cost]))
    for row in range(program.row_count):
        _add_row(problem, variables, program, row)
    return problem, variables


def _add_row(problem: Any, variables: list[Any], program: MixedIntegerProgram, row: int) -> None:
    lower, upper = program.row_lower[row], program.row_upper[row]
    terms = [(variables[c], a) for c, a in zip(program.row_columns[row], program.row_coefficients[row], strict=True)]
    if lower == upper:
        problem += pulp.LpAffineExpression(terms) == lower
        return
    if lower != -math.inf:
        problem += pulp.LpAffineExpression(terms) >= lower
    if upper != math.inf:
        problem += pulp.LpAffineExpression(terms) <= upper


def _finite(bound: float) -> float | None:
    return None if math.isinf(bound) else bound
