"""The linear bound: never above the optimum over all orders of recomputes, and above that of a few slots."""

from __future__ import annotations

import math

import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions
from remat_solver.preparation import make_task
from remat_solver.simulate import store_all_schedule
from remat_solver.solve import solve
from remat_solver.strategies import linear_bound
from remat_solver.strategies.backward_bound import least_recompute_time
from remat_solver.strategies.linear_bound import LinearBound, busy_stages
from remat_solver.strategies.relaxation import Relaxation
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import chain
from tests.solver.random_graphs import random_graph
from tests.solver.test_agreement import batches
from tests.solver.test_backward_bound import EVERYTHING, tight_budget


def relaxation(graph: Graph, budget_bytes: int) -> Relaxation:
    options = SolveOptions(budget_bytes=budget_bytes, time_limit_s=3600)
    return Relaxation(make_task(graph, options, budget_bytes), find_lifetimes(graph))


@pytest.mark.parametrize("seeds", batches(1_000, default=60))
def test_no_slots_give_more_than_the_optimum(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_bound, "_FIRST_STAGES", 2)
    raised = 0
    for seed in seeds:
        graph = random_graph(seed, fewest_ops=4, most_ops=7)
        budget_bytes = tight_budget(graph, seed)
        optimum = free_optimum(graph, budget_bytes)
        if optimum is None or optimum == graph.total_time_ns:
            continue
        reach = least_recompute_time(
            find_lifetimes(graph), budget_bytes, window_ns=EVERYTHING, effort=10**9, should_stop=lambda: False
        )
        assert reach is not None
        assert reach.schedule is not None
        known = relaxation(graph, budget_bytes)
        raised += LinearBound(known, reach.schedule).raise_for(3600, enough_ns=math.inf)
        assert known.bound_ns <= optimum, seed
        assert known.bound_scope == "order"
    assert raised


def test_where_ops_run_many_times_all_stages_say_more_than_some() -> None:
    graph = chain(20)
    budget_bytes = working_set_bound(graph) + 10
    plan = solve(graph, SolveOptions(budget_bytes=budget_bytes, time_limit_s=3600))
    few, many = relaxation(graph, budget_bytes), relaxation(graph, budget_bytes)
    assert LinearBound(few, plan.schedule).raise_for(3600, enough_ns=graph.total_time_ns + 1)
    assert LinearBound(many, plan.schedule).raise_for(3600, enough_ns=math.inf)
    assert graph.total_time_ns < few.bound_ns < many.bound_ns <= plan.time_ns


def test_nothing_is_raised_when_the_time_is_over() -> None:
    graph = chain(12)
    known = relaxation(graph, working_set_bound(graph) + 10)
    linear = LinearBound(known, store_all_schedule(graph))
    assert not linear.raise_for(0.0, enough_ns=math.inf)
    assert known.bound_ns == graph.total_time_ns


def test_slots_that_assume_an_order_of_recomputes_are_left_out() -> None:
    graph = chain(6)
    known = relaxation(graph, working_set_bound(graph) + 10)
    known.slots = {(len(graph) - 2, 1)}
    assert known.relax([(stage, stage) for stage in range(6, len(graph))], stop_s=math.inf)
    assert known.bound_ns > graph.total_time_ns
    assert known.bound_scope == "order"


def test_busy_stages_are_those_with_recomputes_before_their_first_run() -> None:
    assert busy_stages((0, 1, 2, 0, 1, 3, 4, 2, 5)) == [3, 5]
    assert busy_stages((0, 1, 2)) == []
