"""Proofs on coarser views of a graph: what has no place though small values take none has no plan."""

from __future__ import annotations

import pytest

from remat_solver.formulation.lifetimes import find_lifetimes, only_large
from remat_solver.graph import Graph
from remat_solver.strategies.backward_walk import Judge
from remat_solver.strategies.refutation import views
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import op
from tests.solver.random_graphs import random_graph
from tests.solver.test_agreement import batches
from tests.solver.test_backward_walk import tight_budget


@pytest.mark.parametrize("seeds", batches(3_000, default=300))
def test_what_has_no_place_though_small_values_take_none_has_no_plan(seeds: range) -> None:
    refuted = 0
    for seed in seeds:
        graph = random_graph(seed, most_ops=6)
        budget_bytes = tight_budget(graph, seed)
        for least_bytes in (2, 4, 6):
            view = only_large(find_lifetimes(graph), least_bytes)
            verdict = Judge(view, budget_bytes).judge(effort=10**9, should_stop=lambda: False)
            assert verdict is not None
            if verdict.needed_bytes is not None:
                refuted += 1
                assert free_optimum(graph, verdict.needed_bytes - 1) is None, (seed, least_bytes)
    assert refuted > 10


def test_views_go_from_coarse_to_fine() -> None:
    graph = Graph(ops=(op("a", sizes=(100, 40, 15)), op("b", 0, 1, 2, sizes=(3,)), op("c", 3, sizes=(1,))))
    kept = [
        [size for size, lasts in zip(graph.sizes, view.is_lasting, strict=True) if not lasts]
        for view in views(find_lifetimes(graph), 1000)
    ]
    assert kept == [[100], [100, 40], [100, 40, 15]]
