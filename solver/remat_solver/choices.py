"""One way to run each part of a step, so that all parts together stay within a budget and recompute least.

A step runs parts that share memory but not their insides: none can be interleaved with another. Each has a few ways
to run, known beforehand: how long what runs again takes, and how many bytes the way takes, beyond the part's most
frugal one, in each *role* that the part plays during the step (while its forward runs, while it waits for its
backward, while its backward runs). The step is a row of *stretches* that were measured with every part run most
frugally. With x[p,w] = 1 where part p runs in way w:

    minimise    sum over p, w of time[p,w] * x[p,w]
    subject to  sum over w of x[p,w] = 1
                base[k] + sum over roles (p, r) of stretch k, and w, of bytes[p,w,r] * x[p,w] <= budget
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remat_solver.engines import engine_named
from remat_solver.engines.base import Limits, MixedIntegerProgram
from remat_solver.errors import InfeasibleBudget, NoPlanInTime

Role = tuple[int, str]
"""A part, by number, and the name of a role."""

_NS_PER_UNIT = 1000
_BYTES_PER_UNIT = 64
"""Sizes enter the program in units that are rounded up, so that rounding never breaks a budget."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to run a part: the time of all that runs again in a step, and the bytes it adds (or saves) per role."""

    time_ns: int
    bytes_by_role: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A stretch of the step: its peak with every part run most frugally, and who plays which role in it."""

    base_bytes: int
    roles: tuple[Role, ...]


def peak_of(ways: Sequence[Way], stretches: Sequence[Stretch]) -> int:
    """The highest stretch, in bytes, if each part runs in the way given for it."""
    return max(
        stretch.base_bytes + sum(ways[part].bytes_by_role.get(role, 0) for part, role in stretch.roles)
        for stretch in stretches
    )


def choose_ways(
    parts: Sequence[Sequence[Way]],
    stretches: Sequence[Stretch],
    *,
    budget_bytes: int,
    engine: str = "cbc",
    time_limit_s: float = 30.0,
    gap: float = 1e-3,
) -> tuple[int, ...]:
    """The number of the way chosen for each part. `gap` is a share of the longest choice's time.

    Raises `InfeasibleBudget` where no choice fits, `NoPlanInTime` where none was found, and `EngineError`s.
    """
    program = MixedIntegerProgram()
    columns = [[program.add_column(cost=way.time_ns / _NS_PER_UNIT) for way in ways] for ways in parts]
    for own in columns:
        program.add_row(own, [1.0] * len(own), lower=1.0, upper=1.0)
    for stretch in stretches:
        weights: dict[int, int] = {}
        for part, role in stretch.roles:
            for column, way in zip(columns[part], parts[part], strict=True):
                weights[column] = weights.get(column, 0) + way.bytes_by_role.get(role, 0)
        used = {column: -(-weight // _BYTES_PER_UNIT) for column, weight in weights.items() if weight}
        room = (budget_bytes - stretch.base_bytes) // _BYTES_PER_UNIT
        if used:
            program.add_row(list(used), [float(w) for w in used.values()], lower=-math.inf, upper=float(room))
        elif room < 0:
            raise _infeasible(budget_bytes)
    longest_ns = sum(max(way.time_ns for way in ways) for ways in parts)
    limits = Limits(time_limit_s=time_limit_s, absolute_gap=gap * longest_ns / _NS_PER_UNIT)
    outcome = engine_named(engine).solve(program, limits)
    if outcome.x is None:
        if outcome.termination == "infeasible":
            raise _infeasible(budget_bytes)
        raise NoPlanInTime(
            f"no plan within {budget_bytes} bytes was found in {time_limit_s:g} s; one may exist.",
            hint="Allow more time, or raise the budget.",
        )
    x = outcome.x
    return tuple(max(range(len(own)), key=lambda way: x[own[way]]) for own in columns)


def _infeasible(budget_bytes: int) -> InfeasibleBudget:
    return InfeasibleBudget(
        f"no choice among the ways in which the parts can run fits in {budget_bytes} bytes.",
        hint="Raise the budget.",
        budget_bytes=budget_bytes,
        proof_scope="order",
    )
