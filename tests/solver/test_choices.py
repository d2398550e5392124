"""Choosing a way for each part: as good as trying all choices, within the budget, or refused."""

from __future__ import annotations

import itertools
import random

import pytest

from remat_solver.choices import Stretch, Way, choose_ways, peak_of
from remat_solver.errors import InfeasibleBudget

ROLES = ("forward", "waiting", "backward")


def random_problem(seed: int) -> tuple[list[list[Way]], list[Stretch]]:
    """Parts whose first way adds nothing; stretches in which some of them play roles, one twice."""
    draw = random.Random(seed)
    parts = [
        [Way(time_ns=1_000_000, bytes_by_role={}), *(
            Way(time_ns=draw.randrange(0, 900_000, 1000), bytes_by_role={r: draw.randrange(-500, 9000) for r in ROLES})
            for _ in range(draw.randrange(1, 4))
        )]
        for _ in range(4)
    ]  # fmt: skip
    stretches = [
        Stretch(
            base_bytes=draw.randrange(20_000),
            roles=tuple((draw.randrange(4), draw.choice(ROLES)) for _ in range(draw.randrange(5))),
        )
        for _ in range(8)
    ]
    return parts, stretches


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_best_of_all_choices_within_the_budget(seed: int) -> None:
    parts, stretches = random_problem(seed)
    budget = peak_of([ways[0] for ways in parts], stretches) + 9000
    chosen = choose_ways(parts, stretches, budget_bytes=budget, gap=0.0)
    ways = [known[way] for known, way in zip(parts, chosen, strict=True)]
    assert peak_of(ways, stretches) <= budget
    roundings = 64 * (max(len(stretch.roles) for stretch in stretches) + 1)
    best = min(
        sum(way.time_ns for way in choice)
        for choice in itertools.product(*parts)
        if peak_of(choice, stretches) <= budget - roundings
    )
    assert sum(way.time_ns for way in ways) <= best


def test_where_nothing_fits_it_says_so() -> None:
    parts = [[Way(time_ns=5, bytes_by_role={"waiting": 0}), Way(time_ns=0, bytes_by_role={"waiting": 100})]]
    held = Stretch(base_bytes=1000, roles=((0, "waiting"),))
    assert choose_ways(parts, [held], budget_bytes=1000) == (0,)
    for stretches in ([held], [Stretch(base_bytes=1000, roles=())]):
        with pytest.raises(InfeasibleBudget, match="fits in 900 bytes"):
            choose_ways(parts, stretches, budget_bytes=900)
