"""Models written straight to MPS, for programs on which PuLP's objects would be the bottleneck.

Free MPS with one entry a line: https://www.gurobi.com/documentation/current/refman/mps_format.html
is the plainest description of the format. Floats are written in full (`repr`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from remat_solver.engines.base import MixedIntegerProgram


class MpsModel:
    """One program as an MPS file in `folder`. Same interface as `PulpModel`."""

    def __init__(self, program: MixedIntegerProgram, folder: Path) -> None:
        self.model_path = folder / "model.mps"
        self._columns = program.column_count
        self._rows = program.row_count
        self.model_path.write_text("".join(_mps(program)))

    def write_start(self, path: Path, start: tuple[float, ...]) -> None:
        """Writes the solution from which CBC starts."""
        lines = ["Stopped on time - objective value 0\n"]
        lines += [f"{column} c{column} {value!r} 0\n" for column, value in enumerate(start)]
        path.write_text("".join(lines))

    def read_solution(self, path: Path) -> tuple[float, ...] | None:
        """The columns' values in CBC's solution file, or None if it holds no incumbent."""
        with path.open() as lines:
            headline = next(lines, "")
            if not _has_incumbent(headline):
                return None
            x = [0.0] * self._columns
            for line in lines:
                fields = line.removeprefix("**").split()
                if fields[1][0] == "c":
                    x[int(fields[1][1:])] = float(fields[2])
        return tuple(x)

    def read_row_duals(self, path: Path) -> tuple[float, ...]:
        """The rows' duals in the solution file of a linear program, which lists those that are at a limit."""
        duals = [0.0] * self._rows
        with path.open() as lines:
            next(lines, "")
            for line in lines:
                fields = line.removeprefix("**").split()
                if fields[1][0] == "r":
                    duals[int(fields[1][1:])] = float(fields[3])
        return tuple(duals)


def _has_incumbent(headline: str) -> bool:
    if headline.startswith("Stopped"):
        return "no integer solution" not in headline
    return headline.startswith("Optimal")


def _mps(program: MixedIntegerProgram) -> Iterator[str]:
    senses = [_sense(low, high) for low, high in zip(program.row_lower, program.row_upper, strict=True)]
    yield "NAME remat FREE\nROWS\n N cost\n"
    yield from (f" {sense} r{row}\n" for row, sense in enumerate(senses))
    yield "COLUMNS\n"
    yield from _columns(program)
    yield "RHS\n"
    for row, sense in enumerate(senses):
        right = program.row_upper[row] if sense == "L" else program.row_lower[row]
        if right and sense != "N":
            yield f" rhs r{row} {right!r}\n"
    yield from _ranges(program, senses)
    yield "BOUNDS\n"
    yield from _bounds(program)
    yield "ENDATA\n"


def _sense(lower: float, upper: float) -> str:
    if lower == upper:
        return "E"
    if lower != -math.inf:
        return "G"
    return "N" if upper == math.inf else "L"


def _columns(program: MixedIntegerProgram) -> Iterator[str]:
    entries: list[list[str]] = [[f" c{c} cost {cost!r}\n"] if cost else [] for c, cost in enumerate(program.cost)]
    for row, (columns, coefficients) in enumerate(zip(program.row_columns, program.row_coefficients, strict=True)):
        for column, coefficient in zip(columns, coefficients, strict=True):
            entries[column].append(f" c{column} r{row} {coefficient!r}\n")
    inside = False
    for column, lines in enumerate(entries):
        if program.integer[column] != inside:
            inside = not inside
            yield f" m{column} 'MARKER' '{'INTORG' if inside else 'INTEND'}'\n"
        yield from lines or [f" c{column} cost 0\n"]
    if inside:
        yield " mend 'MARKER' 'INTEND'\n"


def _ranges(program: MixedIntegerProgram, senses: Iterable[str]) -> Iterator[str]:
    widths = [
        f" range r{row} {program.row_upper[row] - program.row_lower[row]!r}\n"
        for row, sense in enumerate(senses)
        if sense == "G" and program.row_upper[row] != math.inf
    ]
    if widths:
        yield "RANGES\n"
        yield from widths


def _bounds(program: MixedIntegerProgram) -> Iterator[str]:
    for column, (lower, upper) in enumerate(zip(program.lower, program.upper, strict=True)):
        if lower == upper:
            yield f" FX b c{column} {lower!r}\n"
            continue
        if lower == -math.inf:
            yield f" MI b c{column}\n"
        elif lower:
            yield f" LO b c{column} {lower!r}\n"
        yield f" PL b c{column}\n" if upper == math.inf else f" UP b c{column} {upper!r}\n"
