"""Whether a known set lies within another is told as by comparing it with all of them."""

from __future__ import annotations

import random

from remat_solver.strategies.wanted_sets import WantedSets


def test_subsets_are_found_as_by_comparing_all() -> None:
    draw = random.Random(0)
    answers = set()
    for values in (3, 8, 70):
        sets = WantedSets()
        known: list[int] = []
        for _ in range(300):
            few = draw.getrandbits(values) & draw.getrandbits(values) & draw.getrandbits(values)
            many = draw.getrandbits(values) | draw.getrandbits(values)
            is_within = any(other & ~many == 0 for other in known)
            assert sets.any_within(many) == is_within
            answers.add(is_within)
            sets.add(few)
            known.append(few)
        assert len(sets) == len(known)
    assert answers == {True, False}


def test_the_empty_set_lies_within_each() -> None:
    sets = WantedSets()
    assert not sets.any_within(0)
    sets.add(0)
    assert sets.any_within(0)
    assert sets.any_within(5)
