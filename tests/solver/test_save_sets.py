"""Save sets: the exact answer against every choice there is, and the rules that keep gradients right."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from remat_solver.errors import InfeasibleBudget
from remat_solver.save_sets import Interval, Region, RegionOp, predicted_peak, solve_save_sets

KIB = 1024
Choice = frozenset[int] | None


def choices(region: Region) -> Iterator[Choice]:
    """Everything that the rules allow for one region."""
    yield None
    if not region.recomputable:
        return
    savable = [position for position, op in enumerate(region.ops) if op.savable]
    for count in range(len(savable) + 1):
        for chosen in itertools.combinations(savable, count):
            saved = frozenset(chosen)
            drawn = [position in saved for position, op in enumerate(region.ops) if op.random]
            if drawn == sorted(drawn):
                yield saved


def recompute_ns(regions: list[Region], saved: tuple[Choice, ...]) -> int:
    again = [(region, choice) for region, choice in zip(regions, saved, strict=True) if choice is not None]
    ops = [op for region, choice in again for position, op in enumerate(region.ops) if position not in choice]
    return sum(op.time_ns for op in ops) + sum(region.overhead_ns for region, _ in again)


def best(regions: list[Region], intervals: list[Interval], budget_bytes: int) -> int | None:
    fitting = [
        recompute_ns(regions, saved)
        for saved in itertools.product(*(list(choices(region)) for region in regions))
        if predicted_peak(regions, intervals, saved) <= budget_bytes
    ]
    return min(fitting, default=None)


def random_problem(seed: int) -> tuple[list[Region], list[Interval]]:
    draw = random.Random(seed)
    regions = [
        Region(
            ops=tuple(
                RegionOp(
                    time_ns=1000 * draw.choice([0, 1, 5, 40]),
                    size_bytes=KIB * draw.choice([0, 1, 3, 8]),
                    savable=draw.random() < 0.8,
                    random=draw.random() < 0.4,
                )
                for _ in range(draw.randint(1, 4))
            ),
            kept_bytes=KIB * draw.randint(0, 20),
            overhead_ns=1000 * draw.choice([0, 3, 30]),
            recomputable=draw.random() < 0.8,
        )
        for _ in range(draw.randint(1, 3))
    ]
    count = len(regions)
    intervals = [
        Interval(base_bytes=KIB * draw.randint(5, 20), held=tuple(range(held)))
        for held in (*range(count + 1), *reversed(range(count)))
    ]
    return regions, intervals


@pytest.mark.parametrize("seed", range(40))
def test_the_answer_is_the_best_of_all_choices(seed: int) -> None:
    regions, intervals = random_problem(seed)
    budget = KIB * random.Random(seed + 1000).randint(10, 50)
    expected = best(regions, intervals, budget)
    if expected is None:
        with pytest.raises(InfeasibleBudget) as caught:
            solve_save_sets(regions, intervals, budget_bytes=budget)
        least = caught.value.fields["known_feasible_bytes"]
        assert best(regions, intervals, least) is not None
        assert best(regions, intervals, least - 1) is None
        return
    found = solve_save_sets(regions, intervals, budget_bytes=budget, gap=0.0)
    assert found.recompute_ns == recompute_ns(regions, found.saved) == expected
    assert found.bound_ns <= expected
    assert found.peak_bytes == predicted_peak(regions, intervals, found.saved) <= budget
    for region, choice in zip(regions, found.saved, strict=True):
        assert choice in list(choices(region))


def test_a_later_random_op_is_saved_with_an_earlier_one() -> None:
    """The dear op draws first: saving it alone would give its numbers to the other."""
    region = Region(
        ops=(
            RegionOp(time_ns=10**6, size_bytes=KIB, random=True),
            RegionOp(time_ns=1, size_bytes=KIB, random=True),
        ),
        kept_bytes=100 * KIB,
    )
    intervals = [Interval(base_bytes=0, held=(0,))]
    assert solve_save_sets([region], intervals, budget_bytes=KIB, gap=0.0).saved == (frozenset({1}),)
    assert solve_save_sets([region], intervals, budget_bytes=2 * KIB, gap=0.0).saved == (frozenset({0, 1}),)
