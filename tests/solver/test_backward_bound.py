"""The backward bound: never above the optimum over all orders of recomputes, and equal to it with a window for all."""

from __future__ import annotations

import math

import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.graph import Graph, Op, Value
from remat_solver.options import SolveOptions
from remat_solver.preparation import make_task
from remat_solver.simulate import simulate
from remat_solver.strategies.backward_bound import BackwardBound, least_recompute_time
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import chain, op
from tests.solver.random_graphs import random_budget, random_graph
from tests.solver.test_agreement import batches

EVERYTHING = 10**18


def bound(graph: Graph, budget_bytes: int, *, window_ns: int, effort: int = 10**9) -> int | None:
    lifetimes = find_lifetimes(graph)
    reach = least_recompute_time(lifetimes, budget_bytes, window_ns=window_ns, effort=effort, should_stop=lambda: False)
    if reach is None:
        return None
    assert reach.schedule is not None or window_ns < EVERYTHING
    if reach.schedule is not None:
        replay = simulate(graph, reach.schedule)
        assert replay.peak_bytes <= budget_bytes
        assert replay.time_ns == graph.total_time_ns + reach.recompute_ns
    return reach.recompute_ns


def tight_budget(graph: Graph, seed: int) -> int:
    return working_set_bound(graph) + seed % 4 if seed % 2 else random_budget(graph, seed)


@pytest.mark.parametrize("seeds", batches(3_000, default=300))
def test_with_a_window_for_everything_it_is_the_optimum(seeds: range) -> None:
    recomputing = 0
    for seed in seeds:
        graph = random_graph(seed, most_ops=6)
        budget_bytes = tight_budget(graph, seed)
        optimum = free_optimum(graph, budget_bytes)
        found = bound(graph, budget_bytes, window_ns=EVERYTHING)
        assert found == (None if optimum is None else optimum - graph.total_time_ns), seed
        recomputing += bool(found)
    assert recomputing > len(seeds) // 20


@pytest.mark.parametrize("seeds", batches(3_000, default=300))
def test_no_window_gives_more_than_the_optimum(seeds: range) -> None:
    """A larger window mostly gives more, but need not."""
    smaller = larger = 0
    for seed in seeds:
        graph = random_graph(seed, most_ops=6)
        budget_bytes = tight_budget(graph, seed)
        optimum = free_optimum(graph, budget_bytes)
        if optimum is None:
            continue
        bounds = [bound(graph, budget_bytes, window_ns=window_ns) for window_ns in (0, 1, 2, 5, EVERYTHING)]
        known = [found for found in bounds if found is not None]
        assert len(known) == len(bounds), seed
        assert max(known) <= optimum - graph.total_time_ns, seed
        smaller += known[-1] < known[0]
        larger += known[-1] > known[0]
    assert smaller <= larger


def test_small_windows_still_say_something_where_ops_run_many_times() -> None:
    graph = chain(12)
    budget_bytes = working_set_bound(graph) + 10
    bounds = [bound(graph, budget_bytes, window_ns=window_ns) for window_ns in (0, 20, 60, EVERYTHING)]
    known = [found for found in bounds if found is not None]
    assert known == sorted(known)
    assert known[0] < known[-1]
    assert known[-1] > graph.total_time_ns // 2


def test_the_effort_is_kept() -> None:
    graph = chain(30)
    assert bound(graph, working_set_bound(graph) + 10, window_ns=EVERYTHING, effort=50) is None


def question(graph: Graph, budget_bytes: int) -> BackwardBound:
    task = make_task(graph, SolveOptions(budget_bytes=budget_bytes), budget_bytes)
    return BackwardBound(task, find_lifetimes(graph))


def test_windows_grow_until_nothing_is_merged() -> None:
    graph = chain(6)
    budget_bytes = working_set_bound(graph) + 10
    backward = question(graph, budget_bytes)
    backward.raise_for(3600, enough_ns=math.inf)
    assert backward.schedule is not None
    assert simulate(graph, backward.schedule).time_ns == backward.bound_ns
    assert backward.bound_ns == graph.total_time_ns + (bound(graph, budget_bytes, window_ns=EVERYTHING) or 0)


def test_replay_states_are_left_out_only_until_a_schedule_does_not_fit_with_them() -> None:
    """The noise is quicker to make again, but its state is as large as the noise."""
    noise = Op(name="noise", time_ns=1, writes=(Value(size_bytes=2),), recompute_state_bytes=2)
    slow = Op(name="slow", time_ns=5, writes=(Value(size_bytes=2),))
    graph = Graph(ops=(noise, slow, op("wide", sizes=(6,)), op("narrow", 2, sizes=(1,)), op("read", 0, 1, 3)))
    backward = question(graph, 9)
    backward.raise_for(3600, enough_ns=math.inf)
    assert backward.schedule is not None
    assert simulate(graph, backward.schedule).peak_bytes <= 9
    assert backward.bound_ns == free_optimum(graph, 9) == graph.total_time_ns + 5


def test_windows_stop_at_what_is_enough_or_when_the_time_is_over() -> None:
    graph = chain(12)
    backward = question(graph, working_set_bound(graph) + 10)
    backward.raise_for(3600, enough_ns=graph.total_time_ns + 1)
    assert backward.schedule is None
    assert backward.bound_ns > graph.total_time_ns
    late = question(chain(40), working_set_bound(chain(40)) + 30)
    late.raise_for(0.0, enough_ns=math.inf)
    assert late.schedule is None
