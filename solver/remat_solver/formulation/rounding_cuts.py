"""Rounding cuts: what a memory row says once it is remembered that values are kept whole or not at all.

Row 4 of `formulation.memory_cuts` bounds a sum of sizes. Networks have few sizes, many of them multiples of each
other, and small values beside them (a normalisation's statistics) that blur it for an engine's own cuts.
Mixed-integer rounding (Nemhauser and Wolsey, 1990) of that one row: take columns x in a set C as 1 - x', drop the
continuous ones, whose coefficients are not negative, and divide by d. With b' = b - sum over C of a, and r = b' mod d,

    sum of (floor(a/d) + max(0, a mod d - r) / (d - r)) x  <=  floor(b'/d)     (for C: -a in place of a, x' of x)

holds for whole x >= 0. All of it is computed in bytes, as integers, so that no rounding enters but the last division.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_solver.formulation.memory_cuts import CutModel, Slot

MIN_DEPTH = 1e-3
"""Cuts whose distance from the point is less are not worth a row."""
_SMALLEST_DIVISOR = 1e-4
"""Of the row's room."""
_MAX_DIVISORS = 12
"""Per row: sizes of fractional columns, the largest first."""
_MOST_SIZES = 0.5
"""Per column: where sizes are mostly different, as in random graphs, no cut was worth its row."""


@dataclass(frozen=True, kw_only=True)
class RoundingCut:
    """One cut, in terms that outlive the model: of the memory row at `slot`, by `divisor` bytes.

    `absent`: the values whose columns are complemented.
    """

    slot: Slot
    divisor: int
    absent: frozenset[int]


def add_rounding_cut(model: CutModel, cut: RoundingCut) -> bool:
    """Writes `cut` as a row of the model's program; False if it says nothing there."""
    if cut.slot not in model.slots:
        return False
    row = _Row(model, model.slots.index(cut.slot))
    kept = model.kept[row.k]
    rounded = row.round(cut.divisor, frozenset(kept[value] for value in cut.absent if value in kept))
    if rounded is None:
        return False
    coefficients, upper = rounded
    columns = [column for column, coefficient in coefficients.items() if coefficient]
    if columns:
        model.program.add_row(columns, [coefficients[c] for c in columns], lower=-math.inf, upper=upper)
    return bool(columns)


def violated_rounding_cuts(model: CutModel, x: Sequence[float]) -> list[RoundingCut]:
    """For each slot, the cut that the point `x` violates most, if any does."""
    found = []
    for k in range(len(model.slots)):
        cut = _deepest_cut(model, _Row(model, k), x)
        if cut is not None:
            found.append(cut)
    return found


def _deepest_cut(model: CutModel, row: _Row, x: Sequence[float]) -> RoundingCut | None:
    values = {column: value for value, column in model.kept[row.k].items()}
    high = frozenset(column for column in row.sizes if x[column] > 0.5 and column in values)
    deepest, best = MIN_DEPTH, None
    for divisor in row.divisors(x):
        for complemented in (frozenset[int](), high):
            rounded = row.round(divisor, complemented)
            if rounded is None:
                continue
            coefficients, upper = rounded
            activity = sum(coefficient * x[column] for column, coefficient in coefficients.items())
            norm = math.sqrt(sum(coefficient**2 for coefficient in coefficients.values()))
            if norm and (activity - upper) / norm > deepest:
                deepest, best = (activity - upper) / norm, (divisor, complemented)
    if best is None:
        return None
    divisor, complemented = best
    return RoundingCut(slot=model.slots[row.k], divisor=divisor, absent=frozenset(values[c] for c in complemented))


class _Row:
    """The memory row of slot `k` in bytes: `sizes` by binary column, and the room for them."""

    def __init__(self, model: CutModel, k: int) -> None:
        self.k = k
        program, row = model.program, model.memory_row[k]
        unit = model.scale.memory_unit
        terms = zip(program.row_columns[row], program.row_coefficients[row], strict=True)
        self.sizes = {column: round(size * unit) for column, size in terms if program.integer[column]}
        self.room = round(program.row_upper[row] * unit)

    def divisors(self, x: Sequence[float]) -> list[int]:
        """Sizes of columns that are fractional in `x`, the largest first; none where sizes are mostly different."""
        if len(set(self.sizes.values())) > _MOST_SIZES * len(self.sizes):
            return []
        least = _SMALLEST_DIVISOR * self.room
        sizes = {size for column, size in self.sizes.items() if size > least and 1e-5 < x[column] < 1 - 1e-5}
        return sorted(sizes, reverse=True)[:_MAX_DIVISORS]

    def round(self, divisor: int, complemented: frozenset[int]) -> tuple[dict[int, float], float] | None:
        """Coefficients by column and the upper bound of the rounded row; None if rounding gains nothing."""
        room = self.room - sum(self.sizes.get(column, 0) for column in complemented)
        whole, rest = divmod(room, divisor)
        if not rest:
            return None
        upper = float(whole)
        coefficients: dict[int, float] = {}
        for column, size in self.sizes.items():
            sign = -1 if column in complemented else 1
            floor, over = divmod(sign * size, divisor)
            coefficient = sign * (floor + max(0, over - rest) / (divisor - rest))
            coefficients[column] = coefficient
            if sign < 0:
                upper += coefficient
        return coefficients, upper
