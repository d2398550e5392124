"""Walking backwards refutes exactly the budgets that no order of recomputations meets."""

from __future__ import annotations

import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.graph import Graph, Op, Value
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.backward_walk import Judge
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import chain, op
from tests.solver.random_graphs import random_budget, random_graph
from tests.solver.test_agreement import batches


def refute(graph: Graph, budget_bytes: int) -> int | None:
    verdict = Judge(find_lifetimes(graph), budget_bytes).judge(effort=10**9, should_stop=lambda: False)
    assert verdict is not None
    return verdict.needed_bytes


def tight_budget(graph: Graph, seed: int) -> int:
    return working_set_bound(graph) + seed % 4 if seed % 2 else random_budget(graph, seed)


@pytest.mark.parametrize("seeds", batches(3_000, default=300))
def test_refuted_is_what_an_exhaustive_search_finds_infeasible(seeds: range) -> None:
    for seed in seeds:
        graph = random_graph(seed, most_ops=6)
        budget_bytes = tight_budget(graph, seed)
        needed = refute(graph, budget_bytes)
        assert (needed is None) == (free_optimum(graph, budget_bytes) is not None), seed
        if needed is not None:
            assert needed > budget_bytes, seed
            assert free_optimum(graph, needed - 1) is None, seed


def test_a_replay_state_waits_where_the_value_would() -> None:
    for state_bytes, fits in ((1, True), (2, False)):
        draw = Op(name="draw", time_ns=1, writes=(Value(size_bytes=2),), recompute_state_bytes=state_bytes)
        graph = Graph(ops=(draw, op("wide", sizes=(6,)), op("narrow", 1, sizes=(1,)), op("read", 0, 2)))
        assert (refute(graph, 8) is None) == fits
        assert (free_optimum(graph, 8) is not None) == fits


def test_some_refuted_budgets_are_above_the_working_set_bound() -> None:
    above = 0
    for seed in range(300):
        graph = random_graph(seed, most_ops=7)
        needed = refute(graph, working_set_bound(graph))
        above += needed is not None
    assert above > 5  # or the walks say nothing that the bound did not say


def test_a_value_that_can_neither_wait_nor_be_made_again() -> None:
    """b's value must wait while e runs (2 + 7), or be made again beside e's value (7 + 2)."""
    graph = Graph(
        ops=(
            op("a", sizes=(1,)),
            Op(name="b", time_ns=1, reads=(0,), writes=(Value(size_bytes=2),), workspace_bytes=4),
            op("c", 1, sizes=(2,)),
            Op(name="e", time_ns=1, reads=(2,), writes=(Value(size_bytes=2),), workspace_bytes=3),
            op("d", 1, 3, sizes=(1,)),
        )
    )
    bound = working_set_bound(graph)
    assert bound == 1 + 2 + 4
    needed = refute(graph, bound)
    assert needed == 2 + 2 + 2 + 3
    assert free_optimum(graph, needed - 1) is None
    assert free_optimum(graph, needed) is not None


def test_turns_add_up() -> None:
    """However small they are, and however often they end before their time."""
    graph = chain(30)
    judge = Judge(find_lifetimes(graph), working_set_bound(graph) + 10)
    turns = 0
    while judge.judge(effort=5, should_stop=lambda: False) is None:
        turns += 1
    assert turns > 3
    whole = Judge(find_lifetimes(graph), working_set_bound(graph) + 10)
    assert whole.judge(effort=10**9, should_stop=lambda: False) == judge.verdict
    assert judge.judge(effort=0, should_stop=lambda: True) == judge.verdict


def test_store_all_is_never_refuted() -> None:
    for seed in range(100):
        graph = random_graph(seed, most_ops=10)
        assert refute(graph, simulate(graph, store_all_schedule(graph)).peak_bytes) is None


def test_a_stop_request_ends_the_turn() -> None:
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return True

    graph = chain(40)
    judge = Judge(find_lifetimes(graph), working_set_bound(graph) + 20)
    assert judge.judge(effort=10**9, should_stop=stop) is None
    assert looks == 1
