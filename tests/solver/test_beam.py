"""Beam search: what it returns fits and is near the optimum of all schedules; what can't fit is not found."""

from remat_solver.bounds import working_set_bound
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.graph import Graph, Op, Value
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.beam import BeamRule, BeamSearch
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import op
from tests.solver.random_graphs import random_budget, random_graph


def never() -> bool:
    return False


def deep_network(layers: int) -> Graph:
    """Equal layers forward and back: backward op i reads the gradient and what layer i - 1 gave."""
    forward = [
        Op(name=f"f{i}", time_ns=10, reads=(i - 1,) if i else (), writes=(Value(size_bytes=4),)) for i in range(layers)
    ]
    backward = [
        Op(
            name=f"b{i}",
            time_ns=10,
            reads=(layers + layers - 2 - i, i) if i < layers - 1 else (i,),
            writes=(Value(size_bytes=4),),
        )
        for i in range(layers - 1, -1, -1)
    ]
    return Graph(ops=(*forward, *backward))


def test_schedules_fit_and_are_near_the_optimum():
    found = optimal = feasible = 0
    for seed in range(300):
        graph = random_graph(seed, most_ops=7)
        budget = random_budget(graph, seed)
        least_ns = free_optimum(graph, budget)
        schedule = BeamSearch(find_lifetimes(graph), budget).schedule(BeamRule(), should_stop=never)
        if any(op.recompute_state_bytes for op in graph.ops):
            continue  # they count as held throughout, so that tight budgets are missed
        feasible += least_ns is not None
        if schedule is None:
            continue
        replay = simulate(graph, schedule)
        assert replay.peak_bytes <= budget, seed
        assert least_ns is not None, seed
        found += 1
        optimal += replay.time_ns == least_ns
    assert found >= 0.9 * feasible
    assert optimal >= 0.9 * found
    assert feasible >= 100


def test_everything_runs_once_where_memory_is_ample():
    graph = deep_network(8)
    budget = simulate(graph, store_all_schedule(graph)).peak_bytes
    schedule = BeamSearch(find_lifetimes(graph), budget).schedule(BeamRule(), should_stop=never)
    assert schedule == list(range(16))


def test_deep_networks_near_the_floor():
    """Evenly spaced checkpoints, found without being told of them: some ops run three times."""
    graph = deep_network(16)
    budget = working_set_bound(graph) + 12
    schedule = BeamSearch(find_lifetimes(graph), budget).schedule(BeamRule(width=40), should_stop=never)
    assert schedule is not None
    assert simulate(graph, schedule).peak_bytes <= budget
    assert max(schedule.count(i) for i in range(16)) >= 3
    assert simulate(graph, schedule).time_ns <= 1.41 * graph.total_time_ns


def test_it_pays_to_weigh_a_recompute_by_the_demands_to_come():
    graph = deep_network(24)
    search = BeamSearch(find_lifetimes(graph), working_set_bound(graph) + 16)
    times = []
    for power in (0.0, 0.3):
        schedule = search.schedule(BeamRule(demand_power=power), should_stop=never)
        assert schedule is not None
        times.append(simulate(graph, schedule).time_ns)
    assert times[1] < times[0]


def test_ops_that_may_not_run_again_run_once():
    ops = (op("once", sizes=(4,), recomputable=False), op("big", sizes=(9,)), op("late", 0, 1, sizes=(1,)))
    search = BeamSearch(find_lifetimes(Graph(ops=ops)), 14)
    assert search.schedule(BeamRule(), should_stop=never) == [0, 1, 2]


def test_nothing_is_found_below_the_working_set():
    graph = deep_network(4)
    assert (
        BeamSearch(find_lifetimes(graph), working_set_bound(graph) - 1).schedule(BeamRule(), should_stop=never) is None
    )


def test_it_stops_when_told():
    graph = deep_network(16)
    search = BeamSearch(find_lifetimes(graph), working_set_bound(graph) + 12)
    assert search.schedule(BeamRule(), should_stop=lambda: True) is None
