"""Walks that decide about large values first: what they find fits, and what they refute has no plan."""

from __future__ import annotations

import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes, only_large
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.backward_walk import judge_budget
from remat_solver.strategies.large_first import StraightWalk, first_schedules, views
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import op
from tests.solver.random_graphs import random_graph
from tests.solver.test_agreement import batches
from tests.solver.test_backward_walk import tight_budget, without_replay_states


def walk_straight(graph: Graph, budget_bytes: int, *, effort: int = 10**9) -> list[int] | None:
    return StraightWalk(find_lifetimes(graph), budget_bytes, effort, lambda: False).schedule()


@pytest.mark.parametrize("seeds", batches(3_000, default=300))
def test_a_walk_arrives_where_an_exhaustive_search_finds_a_schedule(seeds: range) -> None:
    for seed in seeds:
        graph = without_replay_states(random_graph(seed, most_ops=6))
        budget_bytes = tight_budget(graph, seed)
        schedule = walk_straight(graph, budget_bytes)
        assert (schedule is None) == (free_optimum(graph, budget_bytes) is None), seed
        if schedule is not None:
            assert simulate(graph, schedule).peak_bytes <= budget_bytes, seed


@pytest.mark.parametrize("seeds", batches(3_000, default=300))
def test_what_has_no_place_though_small_values_take_none_has_no_plan(seeds: range) -> None:
    refuted = 0
    for seed in seeds:
        graph = random_graph(seed, most_ops=6)
        budget_bytes = tight_budget(graph, seed)
        for least_bytes in (2, 4, 6):
            view = only_large(find_lifetimes(graph), least_bytes)
            needed = judge_budget(view, budget_bytes, effort=10**9, should_stop=lambda: False).needed_bytes
            if needed is not None:
                refuted += 1
                assert free_optimum(graph, needed - 1) is None, (seed, least_bytes)
    assert refuted > 10


def test_every_schedule_fits() -> None:
    found = 0
    for seed in range(60):
        graph = random_graph(seed, most_ops=14)
        budget_bytes = (working_set_bound(graph) + simulate(graph, store_all_schedule(graph)).peak_bytes) // 2
        for schedule in first_schedules(find_lifetimes(graph), budget_bytes, should_stop=lambda: False):
            if schedule is not None:
                found += 1
                assert simulate(graph, schedule).peak_bytes <= budget_bytes, seed
    assert found > 30


def test_views_go_from_coarse_to_fine() -> None:
    graph = Graph(ops=(op("a", sizes=(100, 40, 15)), op("b", 0, 1, 2, sizes=(3,)), op("c", 3, sizes=(1,))))
    kept = [
        [size for size, lasts in zip(graph.sizes, view.is_lasting, strict=True) if not lasts]
        for view in views(find_lifetimes(graph), 1000)
    ]
    assert kept == [[100], [100, 40], [100, 40, 15]]


def test_the_effort_is_kept() -> None:
    graph = Graph(ops=tuple(op(f"op{i}", *([i - 1] if i else []), sizes=(1,)) for i in range(30)))
    assert walk_straight(graph, 2) == list(range(30))
    assert walk_straight(graph, 2, effort=5) is None
