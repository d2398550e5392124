"""The strategies without a proof of their own: never above the budget, never below the optimum."""

from __future__ import annotations

import dataclasses
import math

import pytest

from remat_solver.errors import InfeasibleBudget, NoPlanInTime, StrategyNotApplicable
from remat_solver.graph import Graph
from remat_solver.options import STRATEGIES
from remat_solver.plan import Plan
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve
from remat_solver.strategies.chen import articulation_ops
from tests.solver.brute_force import exhaustive_optimum
from tests.solver.graphs import chain, op
from tests.solver.random_graphs import random_budget, random_graph


def with_phases(graph: Graph) -> Graph:
    """The second half counts as backward."""
    half = (len(graph) + 1) // 2
    ops = tuple(
        dataclasses.replace(one, phase="forward" if index < half else "backward") for index, one in enumerate(graph.ops)
    )
    return dataclasses.replace(graph, ops=ops)


def try_plan(graph: Graph, budget_bytes: int, strategy: str, **options: object) -> Plan | None:
    try:
        return solve(graph, budget_bytes=budget_bytes, strategy=strategy, engine="highs", gap=0.0, **options)
    except (NoPlanInTime, InfeasibleBudget):
        return None


@pytest.mark.parametrize("strategy", ["lp_rounding", "chen_sqrt", "chen_greedy", "store_all", "recompute_all"])
def test_never_above_the_budget_nor_below_the_optimum(strategy: str) -> None:
    found = 0
    for seed in range(60):
        graph = with_phases(random_graph(seed, fewest_ops=4))
        budget_bytes = random_budget(graph, seed)
        plan = try_plan(graph, budget_bytes, strategy)
        if plan is None:
            continue
        found += 1
        assert plan.peak_bytes <= budget_bytes, seed
        assert simulate(graph, plan.schedule).peak_bytes == plan.peak_bytes, seed
        optimum = exhaustive_optimum(graph, budget_bytes)
        if optimum is not None:
            assert plan.bound_ns <= optimum.time_ns, seed
            if strategy != "recompute_all":  # which leaves the class in the forward pass no more than the others
                assert plan.time_ns >= optimum.time_ns, seed
    assert found >= 10


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_budget_of_the_store_all_peak_costs_nothing(strategy: str) -> None:
    graph = chain(6)
    replay = simulate(graph, store_all_schedule(graph))
    plan = try_plan(graph, replay.peak_bytes, strategy)
    assert plan is not None
    assert plan.time_ns >= replay.time_ns
    if strategy not in ("recompute_all", "chen_sqrt", "chen_greedy"):
        assert plan.schedule == store_all_schedule(graph)


def test_chens_root_keeps_a_chain_below_a_multiple_of_its_root() -> None:
    for length in (16, 36, 64):
        graph = chain(length)
        size, root = 10, math.isqrt(length)
        plan = try_plan(graph, graph.fixed_bytes + size * (2 * root + 4), "chen_sqrt")
        assert plan is not None
        assert plan.recompute_count <= length
        assert max(plan.run_counts.values()) == 2


def test_chens_greedy_adapts_to_the_budget() -> None:
    graph = chain(30)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    times = []
    for share in (0.9, 0.6, 0.5):
        plan = try_plan(graph, int(peak * share), "chen_greedy")
        assert plan is not None
        times.append(plan.time_ns)
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_recompute_all_needs_the_least_and_takes_the_longest() -> None:
    graph = chain(12)
    tight = graph.fixed_bytes + 40
    assert try_plan(graph, tight, "chen_greedy") is None
    plan = try_plan(graph, tight, "recompute_all")
    assert plan is not None
    assert plan.time_ns > 2 * plan.store_all_time_ns


def test_lp_rounding_is_near_the_optimum_on_a_chain() -> None:
    graph = chain(12)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    for share in (0.5, 0.7, 0.9):
        rounded = try_plan(graph, int(peak * share), "lp_rounding")
        optimal = try_plan(graph, int(peak * share), "memory_cuts")
        assert rounded is not None
        assert optimal is not None
        assert optimal.time_ns <= rounded.time_ns <= 1.4 * optimal.time_ns
        assert rounded.bound_ns <= optimal.time_ns
        assert rounded.proof_scope == "checkmate"


def test_a_strategy_that_fails_says_what_it_needs() -> None:
    graph = chain(6)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    with pytest.raises(NoPlanInTime, match="store_all finds no schedule") as caught:
        solve(graph, budget_bytes=peak - 1, strategy="store_all")
    assert caught.value.known_feasible_bytes == peak


def test_lp_rounding_proves_what_the_relaxation_excludes() -> None:
    graph = Graph(ops=(op("a", sizes=(4,)), op("b", 0, sizes=(1,)), op("c", 1, sizes=(9,)), op("d", 0, 2, sizes=(1,))))
    with pytest.raises(InfeasibleBudget):
        solve(graph, budget_bytes=9, strategy="lp_rounding", engine="highs")


@pytest.mark.parametrize("strategy", ["chen_sqrt", "chen_greedy"])
def test_chen_needs_phases(strategy: str) -> None:
    with pytest.raises(StrategyNotApplicable, match="backward"):
        solve(random_graph(3), budget_bytes=1000, strategy=strategy)


def test_store_all_cannot_obey_recompute_pins() -> None:
    with pytest.raises(StrategyNotApplicable, match="recompute"):
        solve(chain(4), budget_bytes=1000, strategy="store_all", recompute=("f0",))


@pytest.mark.parametrize("strategy", ["lp_rounding", "chen_sqrt", "chen_greedy", "recompute_all", "checkmate"])
def test_recompute_pins_are_obeyed(strategy: str) -> None:
    plan = try_plan(chain(5), 1000, strategy, recompute=("f1",))
    assert plan is not None
    assert plan.run_counts[1] >= 2


def test_keep_pins_are_obeyed_by_the_extreme() -> None:
    plan = try_plan(chain(5), 1000, "recompute_all", keep=("f1",))
    assert plan is not None
    assert plan.run_counts[1] == 1
    assert plan.run_counts[0] == 2  # for b0 alone: f1 is there


def test_articulation_points_are_where_graphs_fall_apart() -> None:
    for seed in range(80):
        graph = random_graph(seed, fewest_ops=3, most_ops=14)
        expected = [
            removed
            for removed in range(len(graph))
            if pieces(graph, {removed}) > pieces(graph, set()) - alone(graph, removed)
        ]
        assert articulation_ops(graph, len(graph)) == expected, seed


def alone(graph: Graph, one: int) -> int:
    """1 if the op has no neighbour (its removal takes its own piece away), else 0."""
    reads_any = bool(graph.ops[one].reads)
    return int(not reads_any and not any(graph.readers[value] for value in graph.written_by(one)))


def pieces(graph: Graph, removed: set[int]) -> int:
    """Connected pieces of the undirected graph without the removed ops."""
    group = {one: one for one in range(len(graph)) if one not in removed}
    for reader, one in enumerate(graph.ops):
        for value in one.reads:
            producer = graph.producer[value]
            if reader in group and producer in group:
                old, new = group[reader], group[producer]
                group = {member: new if label == old else label for member, label in group.items()}
    return len(set(group.values()))
