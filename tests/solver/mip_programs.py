"""Programs for the engines' tests: each meant to end in a certain way."""

from __future__ import annotations

import itertools
import math
import random

from remat_solver.engines.base import MixedIntegerProgram
from remat_solver.engines.incumbent import is_feasible


def knapsack_cover() -> tuple[MixedIntegerProgram, float]:
    """Quick to prove; with its optimum. The constant must reach objective and bound."""
    program = MixedIntegerProgram(constant=10.0)
    costs = [4.0, 3.5, 7.0, 2.0]
    columns = [program.add_column(cost=cost) for cost in costs]
    program.add_row(columns, [3.0, 2.0, 6.0, 1.0], lower=6.0, upper=math.inf)
    return program, 17.0


def infeasible() -> MixedIntegerProgram:
    """Feasible as a linear program, infeasible in integers."""
    program = MixedIntegerProgram()
    columns = [program.add_column(cost=1.0) for _ in range(8)]
    program.add_row(columns, [2.0] * 8, lower=7.0, upper=7.0)
    return program


def hard_cover(columns: int = 200, rows: int = 300, seed: int = 1) -> MixedIntegerProgram:
    """A set cover: incumbents come at once (all ones is one), the proof takes hours. Its constant is 1000."""
    rng = random.Random(seed)
    program = MixedIntegerProgram(constant=1000.0)
    for _ in range(columns):
        program.add_column(cost=float(rng.randint(5, 15)))
    for _ in range(rows):
        program.add_row(rng.sample(range(columns), 8), [1.0] * 8, lower=1.0, upper=math.inf)
    return program


def market_split(seed: int = 1) -> MixedIntegerProgram:
    """Cornuéjols and Dawande's market split: engines find neither a solution nor a proof for a long time."""
    rng = random.Random(seed)
    program = MixedIntegerProgram()
    columns = [program.add_column(cost=1.0) for _ in range(50)]
    for _ in range(6):
        weights = [float(rng.randint(1, 99)) for _ in columns]
        half = float(sum(weights) // 2)
        program.add_row(columns, weights, lower=half, upper=half)
    return program


def random_program(seed: int) -> MixedIntegerProgram:
    """Up to 9 binary columns, rows of every kind, negative costs, unused and fixed columns."""
    rng = random.Random(seed)
    program = MixedIntegerProgram(constant=rng.choice([0.0, 5.25]))
    count = rng.randint(2, 9)
    for _ in range(count):
        cost = rng.choice([0.0, 1.0, 2.5, -1.75, rng.random() * 10])
        program.add_column(cost=cost, lower=rng.choice([0.0, 0.0, 0.0, 1.0]))
    for _ in range(rng.randint(1, 5)):
        columns = rng.sample(range(count), rng.randint(1, count))
        coefficients = [rng.choice([1.0, -1.0, 2.0, 3.5, rng.random() * 1000]) for _ in columns]
        reach = sum(map(abs, coefficients))
        limit = rng.uniform(-reach, reach / 2)
        kind = rng.choice("GGLRN")
        lower = limit if kind in "GR" else -math.inf
        upper = {"L": limit + reach / 2, "R": limit + reach}.get(kind, math.inf)
        program.add_row(columns, coefficients, lower=lower, upper=upper)
    return program


def enumerate_optimum(program: MixedIntegerProgram) -> float | None:
    """The optimum over all 0-1 points, None if none is feasible."""
    ranges = [range(int(low), int(high) + 1) for low, high in zip(program.lower, program.upper, strict=True)]
    prices = [program.price(x) for x in itertools.product(*ranges) if is_feasible(program, x)]
    return min(prices, default=None)
