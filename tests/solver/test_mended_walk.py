"""A walk back that is mended where it is blocked: what it finds fits, and it seldom misses what there is."""

from __future__ import annotations

import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.graph import Graph
from remat_solver.simulate import simulate
from remat_solver.strategies.mended_walk import MendedWalk, first_schedules
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import op
from tests.solver.random_graphs import random_graph
from tests.solver.test_agreement import batches
from tests.solver.test_backward_walk import tight_budget


def find(graph: Graph, budget_bytes: int) -> list[int] | None:
    found = first_schedules(find_lifetimes(graph), budget_bytes, should_stop=lambda: False)
    return next((schedule for schedule in found if schedule is not None), None)


@pytest.mark.parametrize("seeds", batches(3_000, default=300))
def test_it_seldom_misses_what_an_exhaustive_search_finds(seeds: range) -> None:
    found = missed = 0
    for seed in seeds:
        graph = random_graph(seed, most_ops=6)
        budget_bytes = tight_budget(graph, seed)
        schedule = find(graph, budget_bytes)
        if schedule is not None:
            found += 1
            assert simulate(graph, schedule).peak_bytes <= budget_bytes, seed
        else:
            missed += free_optimum(graph, budget_bytes) is not None
    assert found > len(seeds) // 2
    assert missed <= found // 20


def test_larger_graphs_fit_too() -> None:
    found = 0
    for seed in range(60):
        graph = random_graph(seed, most_ops=30)
        budget_bytes = int(1.2 * working_set_bound(graph))
        schedule = find(graph, budget_bytes)
        if schedule is not None:
            found += 1
            assert simulate(graph, schedule).peak_bytes <= budget_bytes, seed
    assert found > 30


def test_what_waits_is_made_again_at_a_wide_place() -> None:
    """m can't wait beside n, nor be made again right before t, where z waits: it is made before z."""
    graph = Graph(
        ops=(
            op("a", sizes=(1,)),
            op("b", 0, sizes=(4,)),
            op("m", 1, sizes=(2,)),
            op("n", sizes=(7,)),
            op("y", 3, sizes=(1,)),
            op("z", 4, sizes=(3,)),
            op("t", 0, 2, 5, sizes=(1,)),
        )
    )
    schedule = find(graph, 9)
    assert schedule == [0, 1, 2, 3, 4, 1, 2, 5, 6]


def test_it_pauses_between_attempts_to_mend() -> None:
    graph = random_graph(3, most_ops=30)
    budget_bytes = int(1.2 * working_set_bound(graph))
    pauses = list(first_schedules(find_lifetimes(graph), budget_bytes, should_stop=lambda: False))
    assert None in pauses
    assert list(first_schedules(find_lifetimes(graph), budget_bytes, should_stop=lambda: True)) == []


def test_frugal_walks_take_less_time_in_all() -> None:
    recompute_ns = {False: 0, True: 0}
    for seed in range(60):
        graph = random_graph(seed, most_ops=30)
        times = {is_frugal: time_of_walk(graph, is_frugal=is_frugal) for is_frugal in recompute_ns}
        if None not in times.values():
            for is_frugal, time_ns in times.items():
                recompute_ns[is_frugal] += (time_ns or 0) - graph.total_time_ns
    assert 0 < recompute_ns[True] < recompute_ns[False]


def time_of_walk(graph: Graph, *, is_frugal: bool) -> int | None:
    budget_bytes = int(1.2 * working_set_bound(graph))
    walk = MendedWalk(find_lifetimes(graph), budget_bytes, 10**6, lambda: False, is_frugal=is_frugal, is_thorough=False)
    schedule = next((found for found in walk.search() if found is not None), None)
    return None if schedule is None else simulate(graph, schedule).time_ns
