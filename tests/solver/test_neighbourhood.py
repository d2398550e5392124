"""Neighbourhoods and refitting: the small program keeps what it was given, and the searches only get better."""

import random

from remat_solver.bounds import working_set_bound
from remat_solver.engines import engine_named
from remat_solver.engines.base import Limits
from remat_solver.formulation.lifetimes import Lifetimes, find_lifetimes
from remat_solver.formulation.neighbourhood import build_neighbourhood
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.cleaning import drop_unused
from remat_solver.strategies.fitting import RULES, fit_schedule
from remat_solver.strategies.incumbent import Incumbent
from remat_solver.strategies.neighbourhood import NeighbourhoodSearch
from remat_solver.strategies.refitting import Refitting
from tests.solver.graphs import chain
from tests.solver.random_graphs import random_graph


def never() -> bool:
    return False


def fitted_cases(count: int) -> list[tuple[Graph, Lifetimes, int, list[int]]]:
    """Random graphs with a budget between bound and peak, and a schedule that recomputes to fit it."""
    cases = []
    seed = 0
    while len(cases) < count:
        graph = random_graph(seed, fewest_ops=8, most_ops=20)
        lifetimes = find_lifetimes(graph)
        peak = simulate(graph, store_all_schedule(graph)).peak_bytes
        budget = (working_set_bound(graph) + peak) // 2
        fitted = fit_schedule(lifetimes, store_all_schedule(graph), budget, rule=RULES[0], should_stop=never)
        if fitted is not None and len(fitted) > len(graph):
            cases.append((graph, lifetimes, budget, fitted))
        seed += 1
    return cases


def test_the_schedule_itself_is_a_solution_of_its_neighbourhoods():
    """So the optimum never costs more than what the free ops' recomputes cost now."""
    highs = engine_named("highs")
    for number, (graph, lifetimes, budget, schedule) in enumerate(fitted_cases(40)):
        source = random.Random(number)
        free = {op for op in range(len(graph)) if lifetimes.may_rerun[op] and source.random() < 0.5}
        if any(graph.ops[op].recompute_state_bytes for op in free):
            continue  # states are counted as always held: the program may be stricter than the referee
        model = build_neighbourhood(lifetimes, schedule, free, budget)
        assert not model.contradiction, number
        if not model.program.column_count:
            continue
        outcome = highs.solve(model.program, Limits(time_limit_s=60))
        assert outcome.objective is not None, number
        base_ns = sum(graph.ops[op].time_ns for op in model.base)
        now_ns = sum(graph.ops[op].time_ns for op in schedule) - base_ns
        assert outcome.objective * model.scale.time_unit <= now_ns + 1e-3, number


def test_a_neighbour_can_always_run():
    highs = engine_named("highs")
    for graph, lifetimes, budget, schedule in fitted_cases(20):
        free = {op for op in range(len(graph)) if lifetimes.may_rerun[op]}
        model = build_neighbourhood(lifetimes, schedule, free, budget)
        if model.contradiction or not model.program.column_count:
            continue
        outcome = highs.solve(model.program, Limits(time_limit_s=60))
        if outcome.x is not None:
            simulate(graph, drop_unused(lifetimes, model.schedule(outcome.x)))


def test_searches_never_lose_the_best_schedule():
    for graph, lifetimes, budget, schedule in fitted_cases(12):
        best = Incumbent(lifetimes, budget, is_allowed=lambda _: True)
        best.offer(schedule, should_stop=never)
        before = best.time_ns
        neighbourhoods = NeighbourhoodSearch(lifetimes, engine_named("highs"))
        refitting = Refitting(lifetimes)
        for _ in range(6):
            neighbourhoods.improve(best, should_stop=never)
            refitting.improve(best, should_stop=never)
            assert best.schedule is not None
            replay = simulate(graph, best.schedule)
            assert replay.peak_bytes <= budget
            assert replay.time_ns == best.time_ns <= before
            before = best.time_ns


def test_an_elastic_neighbourhood_comes_nearer_until_it_fits():
    graph = chain(10)
    lifetimes = find_lifetimes(graph)
    budget = working_set_bound(graph) + 40
    best = Incumbent(lifetimes, budget, is_allowed=lambda _: True)
    assert best.come_nearer(store_all_schedule(graph), should_stop=never)
    assert best.schedule is None
    search = NeighbourhoodSearch(lifetimes, engine_named("highs"))
    excess = best.excess_bytes
    for _ in range(60):
        search.approach(best, should_stop=never)
        assert best.excess_bytes <= excess
        excess = best.excess_bytes
        if best.schedule is not None:
            break
    assert best.schedule is not None
    assert simulate(graph, best.schedule).peak_bytes <= budget


def test_same_seed_same_search():
    graph, lifetimes, budget, schedule = fitted_cases(1)[0]
    found = []
    for _ in range(2):
        best = Incumbent(lifetimes, budget, is_allowed=lambda _: True)
        best.offer(schedule, should_stop=never)
        refitting = Refitting(lifetimes, seed=3)
        for _ in range(20):
            refitting.improve(best, should_stop=never)
        found.append(best.schedule)
    assert found[0] == found[1]
    assert graph is not None
