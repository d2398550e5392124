"""Reordering: another topological order of the same ops, that never loses and keeps what must stay in order."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_solver.errors import InfeasibleBudget, InvalidGraph, InvalidPlan, InvalidRequest
from remat_solver.files import load, save
from remat_solver.frontier import frontier
from remat_solver.graph import Graph
from remat_solver.least_memory import minimum_budget
from remat_solver.options import SolveOptions, plan_key
from remat_solver.plan import Plan, confirm_plan, first_runs
from remat_solver.reordering import permute, reorder
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve
from tests.solver.graphs import op, wide
from tests.solver.naive_replay import naive_timeline
from tests.solver.random_graphs import random_budget, random_graph

many = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(min_value=0, max_value=10**6)


def quick(graph: Graph, seed: int = 0):
    """A reordering that ends by tries, not by the clock: the same everywhere."""
    tries = iter(range(3))
    return reorder(graph, budget_bytes=1, time_limit_s=1e9, seed=seed, should_stop=lambda: next(tries, 3) == 3)


def test_brings_the_peak_down_where_an_order_can():
    found = reorder(wide(), budget_bytes=12, time_limit_s=5)
    assert found.original_peak_bytes == 9 + 9 + 1
    assert found.peak_bytes == 1 + 9 + 1
    assert simulate(found.graph, store_all_schedule(found.graph)).peak_bytes == found.peak_bytes


@many
@given(seed=seeds)
def test_never_worse_and_always_the_same_ops(seed):
    graph = random_graph(seed, most_ops=14)
    found = quick(graph)
    assert found.peak_bytes <= found.original_peak_bytes
    assert sorted(found.order) == list(range(len(graph)))
    assert [op.name for op in found.graph.ops] == [graph.ops[i].name for i in found.order]
    assert found.in_original(store_all_schedule(found.graph)) == found.order
    assert found.graph.total_time_ns == graph.total_time_ns


@many
@given(seed=seeds)
def test_leading_an_order_back_gives_the_same_graph(seed):
    graph = random_graph(seed, most_ops=14)
    found = quick(graph)
    back = sorted(range(len(graph)), key=lambda place: found.order[place])
    assert permute(found.graph, back).hash == graph.hash


@many
@given(seed=seeds)
def test_ops_with_state_or_effects_keep_their_order(seed):
    graph = random_graph(seed, most_ops=14)
    fixed = {i for i, op in enumerate(graph.ops) if not op.recomputable or op.recompute_state_bytes}
    kept = [i for i in quick(graph).order if i in fixed]
    assert kept == sorted(kept)


def test_same_seed_same_order():
    graph = random_graph(11, fewest_ops=14, most_ops=14)
    assert quick(graph, seed=5).order == quick(graph, seed=5).order


def test_an_order_that_is_not_topological_is_refused():
    with pytest.raises(InvalidGraph):
        permute(wide(), [4, 0, 1, 2, 3])


def changed(plan: Plan, **fields: object) -> Plan:
    """The plan with other words about itself."""
    return dataclasses.replace(plan, provenance=dataclasses.replace(plan.provenance, **fields))


def test_a_solve_that_may_reorder_needs_no_recomputation() -> None:
    plan = solve(wide(), budget_bytes=12, reorder=True)
    assert plan.is_reordered
    assert plan.recompute_count == 0
    assert plan.status == "optimal"
    assert (plan.store_all_peak_bytes, plan.provenance.reordered_peak_bytes, plan.peak_bytes) == (19, 11, 11)
    with pytest.raises(InvalidPlan, match="first runs keep the order"):
        simulate(wide(), plan.schedule)


def test_a_solve_keeps_the_order_where_another_gains_nothing() -> None:
    fits, chained = solve(wide(), budget_bytes=19, reorder=True), Graph(ops=(op("a"), op("b", 0)), outputs=(1,))
    assert not fits.is_reordered
    assert fits.provenance.reordered_peak_bytes == 0
    with pytest.raises(InfeasibleBudget) as refused:
        solve(chained, budget_bytes=1, reorder=True)
    assert refused.value.proven_infeasible_below_bytes == 2


@many
@given(seed=seeds)
def test_reordered_plans_are_refereed_on_the_callers_graph(seed: int) -> None:
    graph = random_graph(seed, fewest_ops=5, most_ops=9)
    budget_bytes = random_budget(graph, seed)
    try:
        plan = solve(graph, budget_bytes=budget_bytes, reorder=True)
    except InfeasibleBudget:
        return
    replay = confirm_plan(graph, plan)
    assert replay.peak_bytes <= budget_bytes
    assert list(replay.timeline_bytes) == naive_timeline(graph, plan.schedule)
    order = first_runs(plan.schedule)
    assert permute(graph, order).total_time_ns == graph.total_time_ns  # topological, or it raises
    kept = [one for one in order if graph.keeps_its_place[one]]
    assert kept == sorted(kept)
    if plan.is_reordered:
        assert simulate(permute(graph, order), range(len(graph))).peak_bytes == plan.provenance.reordered_peak_bytes
        assert plan.provenance.reordered_peak_bytes < plan.store_all_peak_bytes
    else:
        assert plan.provenance.reordered_peak_bytes == 0


def test_some_random_graphs_do_gain() -> None:
    reordered = 0
    for seed in range(30):
        graph = random_graph(seed, fewest_ops=8, most_ops=12)
        reordered += quick(graph).peak_bytes < quick(graph).original_peak_bytes
    assert reordered > 5


def test_through_a_file_and_no_other_words(tmp_path) -> None:
    plan = solve(wide(), budget_bytes=12, reorder=True)
    save(plan, tmp_path / "plan.json")
    assert load(Plan, tmp_path / "plan.json") == plan
    assert confirm_plan(wide(), plan).peak_bytes == 11
    with pytest.raises(InvalidPlan, match="first runs keep the order"):
        confirm_plan(wide(), changed(plan, reordered_peak_bytes=0))
    with pytest.raises(InvalidPlan, match="the simulator finds 11"):
        confirm_plan(wide(), changed(plan, reordered_peak_bytes=10))


@pytest.mark.parametrize("fields", [{"recomputable": False}, {"recompute_state_bytes": 1}])
def test_the_referee_keeps_effects_and_random_draws_in_order(fields: dict[str, object]) -> None:
    graph = Graph(ops=(op("a", **fields), op("b", **fields), op("c")))
    assert simulate(graph, (2, 0, 1), any_order=True).time_ns == 3
    with pytest.raises(InvalidPlan, match="before op 0"):
        simulate(graph, (1, 0, 2), any_order=True)
    with pytest.raises(InvalidPlan, match="never runs op 2"):
        simulate(graph, (0, 1), any_order=True)


def test_where_reorder_makes_no_sense_it_is_refused() -> None:
    for fields in ({"max_overhead": 0.1}, {"budget_fraction": 0.5, "recompute": ("a",)}):
        with pytest.raises(InvalidRequest, match="reorder"):
            SolveOptions(**fields, reorder=True)
    for planner in (frontier, minimum_budget):
        with pytest.raises(InvalidRequest, match="keeps the graph's order"):
            planner(wide(), reorder=True)


def test_reorder_is_part_of_the_question() -> None:
    asked = SolveOptions(budget_bytes=12)
    keys = {
        plan_key(wide(), options, store_all_peak_bytes=19)
        for options in (asked, dataclasses.replace(asked, reorder=True))
    }
    assert len(keys) == 2


def layered(seed: int, *, layers: int = 10, width: int = 6) -> Graph:
    """Layers of ops that read a few values of the two layers before: nothing like a training graph."""
    source = random.Random(seed)
    ops = []
    for layer in range(layers):
        near = range(max(0, (layer - 2) * width), layer * width)
        for _ in range(width):
            reads = sorted(source.sample(near, min(len(near), source.randint(1, 3))))
            ops.append(op(f"{layer}", *reads, sizes=(source.randint(1, 9),)))
    return Graph(ops=tuple(ops), outputs=(len(ops) - 1,))


def test_hot_searches_leave_the_places_where_gentle_ones_stop() -> None:
    gentle, hot = 0, 0
    for seed in (0, 2, 3):
        graph = layered(seed)
        gentle += reorder(graph, budget_bytes=1, time_limit_s=1e9, is_short=True).peak_bytes
        hot += reorder(graph, budget_bytes=1, time_limit_s=1e9).peak_bytes
    assert (
        hot
        < 0.97 * gentle
        < 0.9 * sum(simulate(layered(seed), store_all_schedule(layered(seed))).peak_bytes for seed in (0, 2, 3))
    )


def test_a_search_out_of_time_never_loses() -> None:
    graph = layered(1)
    found = reorder(graph, budget_bytes=1, time_limit_s=0.0)
    assert found.peak_bytes <= found.original_peak_bytes
