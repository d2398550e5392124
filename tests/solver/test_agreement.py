"""Brute force, the dense program and memory cuts must find the same optima and the same infeasibilities."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from remat_solver.errors import InfeasibleBudget, NoPlanInTime
from remat_solver.graph import Graph, Op, Value
from remat_solver.plan import Plan
from remat_solver.simulate import simulate
from remat_solver.solve import solve
from tests.solver.brute_force import Optimum, exhaustive_optimum, naive_optimum
from tests.solver.graphs import op
from tests.solver.random_graphs import random_budget, random_graph

SMALL = 2_000
MEDIUM = 1_000
BATCH = 100


def batches(count: int, default: int, size: int = BATCH) -> list[object]:
    """Ranges of seeds: the first `default` seeds always, the rest under the marker `full`."""
    return [
        pytest.param(
            range(first, min(first + size, count)),
            id=f"seeds{first}",
            marks=[] if first < default else [pytest.mark.full],
        )
        for first in range(0, count, size)
    ]


@pytest.mark.parametrize("seeds", batches(SMALL, default=100, size=50))
def test_small_graphs_three_ways(seeds: Sequence[int]) -> None:
    for seed in seeds:
        graph = random_graph(seed)
        budget_bytes = random_budget(graph, seed)
        optimum = exhaustive_optimum(graph, budget_bytes)
        dense = ask(graph, budget_bytes, strategy="checkmate", engine="highs")
        assert time_of(dense) == time_of(optimum), seed
        for engine in ("cbc", "highs"):
            check_memory_cuts(graph, ask(graph, budget_bytes, strategy="memory_cuts", engine=engine), optimum, seed)


@pytest.mark.parametrize("seeds", batches(100, default=20, size=20))
def test_the_dense_program_on_cbc(seeds: Sequence[int]) -> None:
    for seed in seeds:
        graph = random_graph(seed)
        budget_bytes = random_budget(graph, seed)
        dense = ask(graph, budget_bytes, strategy="checkmate", engine="cbc")
        assert time_of(dense) == time_of(exhaustive_optimum(graph, budget_bytes)), seed


@pytest.mark.parametrize("seeds", batches(MEDIUM, default=20, size=20))
def test_medium_graphs_two_ways(seeds: Sequence[int]) -> None:
    """8 to 40 ops: what either strategy proves must not contradict what the other found, and mostly both prove it."""
    decided = 0
    for seed in seeds:
        most_ops = 12 if seed % 20 < 14 else 18 if seed % 20 < 19 else 40
        graph = random_graph(seed, fewest_ops=8, most_ops=most_ops)
        budget_bytes = random_budget(graph, seed)
        try:
            cuts = ask(graph, budget_bytes, strategy="memory_cuts", engine="highs", time_limit_s=10)
            dense = ask(graph, budget_bytes, strategy="checkmate", engine="highs", time_limit_s=2)
        except NoPlanInTime:
            continue
        decided += 1
        if cuts is None or dense is None:
            assert time_of(cuts) is time_of(dense) or not is_in_class(cuts), seed
            continue
        assert dense.bound_ns <= cuts.time_ns or not is_in_class(cuts), seed
        assert cuts.bound_ns <= dense.time_ns, seed
        if dense.status == cuts.status == "optimal" and is_in_class(cuts):
            assert dense.time_ns == cuts.time_ns, seed
    assert decided >= len(seeds) // 2


@pytest.mark.parametrize("seeds", batches(1_000, default=200))
def test_brute_force_against_naive_enumeration(seeds: Sequence[int]) -> None:
    for seed in seeds:
        graph = random_graph(seed, most_ops=5)
        budget_bytes = random_budget(graph, seed)
        optimum = exhaustive_optimum(graph, budget_bytes)
        assert time_of(optimum) == time_of(naive_optimum(graph, budget_bytes)), seed
        if optimum is not None:
            replay = simulate(graph, optimum.schedule)
            assert replay.peak_bytes <= budget_bytes, seed
            assert replay.time_ns == optimum.time_ns, seed


def test_the_random_graphs_are_worth_the_trouble() -> None:
    """All kinds of ops occur, and all kinds of answers: infeasible, without and with recomputation."""
    graphs = [random_graph(seed) for seed in range(200)]
    ops = [one for graph in graphs for one in graph.ops]
    assert any(len(one.writes) > 1 for one in ops)
    assert any(not one.writes for one in ops)
    assert any(one.workspace_bytes for one in ops)
    assert any(one.recompute_state_bytes for one in ops)
    assert any(not one.recomputable for one in ops)
    assert any(not one.time_ns for one in ops)
    optima = [exhaustive_optimum(graph, random_budget(graph, seed)) for seed, graph in enumerate(graphs)]
    infeasible = sum(optimum is None for optimum in optima)
    recomputing = sum(
        len(optimum.schedule) > len(graph) for graph, optimum in zip(graphs, optima, strict=True) if optimum is not None
    )
    assert infeasible > 30
    assert recomputing > 30
    assert len(optima) - infeasible - recomputing > 30


def test_checkmates_class_is_narrower_than_the_order() -> None:
    """The example of the design: feasible for some order of recomputations, but not in index order once per stage."""
    graph = Graph(
        ops=(
            op("a", sizes=(4,)),
            op("b", 0, sizes=(1,)),
            Op(name="c", time_ns=1, reads=(1,), writes=(Value(size_bytes=1),), workspace_bytes=3),
            op("e", sizes=(1,), workspace_bytes=6),
            op("d", 0, 2, 3, sizes=(1,)),
        )
    )
    assert exhaustive_optimum(graph, 7) is None
    assert ask(graph, 7, strategy="checkmate", engine="highs") is None
    freer = (0, 1, 2, 3, 0, 1, 2, 0, 4)
    assert simulate(graph, freer).peak_bytes <= 7


def ask(graph: Graph, budget_bytes: int, *, strategy: str, engine: str, time_limit_s: float = 60) -> Plan | None:
    """The plan, None if proven infeasible."""
    try:
        return solve(
            graph, budget_bytes=budget_bytes, strategy=strategy, engine=engine, gap=0.0, time_limit_s=time_limit_s
        )
    except InfeasibleBudget:
        return None


def check_memory_cuts(graph: Graph, plan: Plan | None, optimum: Optimum | None, seed: int) -> None:
    """Memory cuts may leave Checkmate's class, and may then find more than brute force; never less."""
    if plan is not None:
        assert simulate(graph, plan.schedule).peak_bytes <= plan.budget_bytes, seed
        if not is_in_class(plan):
            return
    assert time_of(plan) == time_of(optimum), seed
    if plan is not None:
        assert plan.status == "optimal", seed


def is_in_class(plan: Plan | None) -> bool:
    """Whether the schedule runs, in each stage, earlier ops at most once and in index order."""
    if plan is None:
        return True
    frontier = -1
    last = -1
    for one in plan.schedule:
        if one == frontier + 1:
            frontier, last = one, -1
        elif one > last:
            last = one
        else:
            return False
    return True


def time_of(answer: Plan | Optimum | None) -> int | None:
    return None if answer is None else answer.time_ns
