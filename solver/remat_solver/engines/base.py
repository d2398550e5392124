"""The one small interface behind which every MIP engine stands.

A `MixedIntegerProgram` is minimised: cost . x subject to row_lower <= A x <= row_upper and
column bounds. Units are already scaled by whoever builds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Termination = Literal["optimal", "feasible", "infeasible", "cutoff", "no_solution"]
"""What an engine can say: proven within the gap; stopped with an incumbent; proven infeasible; proven that
nothing is better than the cutoff; stopped (limit or request) without an incumbent, which says nothing about
feasibility."""


@dataclass(kw_only=True)
class MixedIntegerProgram:
    """A minimisation, built row by row. Column j: cost[j], lower[j] <= x[j] <= upper[j], integer[j]."""

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    row_columns: list[list[int]] = field(default_factory=list)
    row_coefficients: list[list[float]] = field(default_factory=list)
    constant: float = 0.0

    @property
    def column_count(self) -> int:
        """Number of columns (variables)."""
        return len(self.cost)

    @property
    def row_count(self) -> int:
        """Number of rows (constraints)."""
        return len(self.row_lower)

    def add_column(self, *, cost: float = 0.0, lower: float = 0.0, upper: float = 1.0, integer: bool = True) -> int:
        """Adds a column and returns its index."""
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def add_row(self, columns: list[int], coefficients: list[float], *, lower: float, upper: float) -> int:
        """Adds lower <= sum coefficients * x[columns] <= upper (either may be infinite); returns its index."""
        self.row_columns.append(columns)
        self.row_coefficients.append(coefficients)
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        return len(self.row_lower) - 1

    def price(self, x: Sequence[float]) -> float:
        """The objective of `x`, computed here and not taken from an engine."""
        return self.constant + sum(c * value for c, value in zip(self.cost, x, strict=True) if c)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop: wall seconds, absolute gap (objective units), and threads.

    With a finite `cutoff` only solutions with a smaller objective are wanted. Where there is none the
    outcome is "cutoff", never "infeasible", and no bound says more than the cutoff.
    """

    time_limit_s: float
    absolute_gap: float = 0.0
    threads: int = 1
    cutoff: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an engine found. `x` is None without an incumbent; `bound` is proven, -inf if unknown.

    `row_duals`: of a program without integer columns that is solved to its optimum, by how much the objective rises
    with the limit of each row. Empty otherwise.
    """

    termination: Termination
    bound: float
    objective: float | None = None
    x: tuple[float, ...] | None = None
    wall_s: float = 0.0
    row_duals: tuple[float, ...] = ()


StopRequest = Callable[[], bool]
"""Polled while an engine runs; True asks it to stop and keep its incumbent."""


class Engine(Protocol):
    """A MIP engine. Raises `EngineMissing` or `EngineFailed`; every other ending is an `Outcome`."""

    @property
    def name(self) -> str:
        """ "cbc" or "highs"."""
        ...

    def version(self) -> str:
        """The engine's own version, for provenance."""
        ...

    def solve(
        self,
        program: MixedIntegerProgram,
        limits: Limits,
        *,
        warm_start: Sequence[float] | None = None,
        should_stop: StopRequest | None = None,
        on_incumbent: Callable[[float, float], None] | None = None,
    ) -> Outcome:
        """Minimises `program`; `on_incumbent(objective, bound)` is called when either improves, where supported."""
        ...
