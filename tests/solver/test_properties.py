"""What must hold of every plan, on generated graphs."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remat_solver.bounds import working_set_bound
from remat_solver.errors import InfeasibleBudget
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.graph import Graph
from remat_solver.plan import Plan, confirm_plan
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve
from remat_solver.strategies.cleaning import drop_unused
from remat_solver.strategies.fitting import RULES, fit_schedule
from remat_solver.strategies.merging import merge_recomputes
from remat_solver.strategies.timeline import Timeline
from tests.solver.random_graphs import random_graph

seeds = st.integers(min_value=0, max_value=10**6)
shares = st.floats(min_value=0, max_value=1)
few = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=80, deadline=None, derandomize=True)


def peak_of(graph: Graph, schedule: list[int] | tuple[int, ...]) -> int:
    return simulate(graph, schedule).peak_bytes


def time_of(graph: Graph, schedule: list[int]) -> int:
    return simulate(graph, schedule).time_ns


def budget_between(graph: Graph, share: float) -> int:
    """From the working-set bound (0) to the store-all peak (1)."""
    bound = working_set_bound(graph)
    return max(1, bound + int(share * (peak_of(graph, store_all_schedule(graph)) - bound)))


def plan_or_none(graph: Graph, budget_bytes: int) -> Plan | None:
    try:
        return solve(graph, budget_bytes=budget_bytes, gap=0, engine="highs")
    except InfeasibleBudget:
        return None


@few
@given(seed=seeds, share=shares)
def test_a_plan_is_valid_fits_to_the_byte_and_costs_no_less_than_its_bound(seed, share):
    graph = random_graph(seed, fewest_ops=5, most_ops=14)
    plan = plan_or_none(graph, budget_between(graph, share))
    if plan is not None:
        assert confirm_plan(graph, plan).peak_bytes <= plan.budget_bytes
        assert plan.bound_ns <= plan.time_ns
        assert plan.time_ns >= graph.total_time_ns
        assert plan.status == "optimal"


@few
@given(seed=seeds, first=shares, second=shares)
def test_a_larger_budget_never_has_a_larger_optimum(seed, first, second):
    graph = random_graph(seed, fewest_ops=5, most_ops=12)
    tight, loose = (plan_or_none(graph, budget_between(graph, share)) for share in sorted((first, second)))
    if tight is not None:
        assert loose is not None
        if loose.proof_scope == "order":
            assert loose.time_ns <= tight.time_ns
        assert loose.bound_ns <= tight.time_ns


@few
@given(seed=seeds)
def test_the_store_all_peak_means_no_recomputation(seed):
    graph = random_graph(seed, most_ops=20)
    plan = plan_or_none(graph, budget_between(graph, 1.0))
    assert plan is not None
    assert plan.recompute_count == 0
    assert plan.gap == 0


def wasteful_schedule(graph: Graph, draw: st.DrawFn) -> list[int]:
    """A schedule that can run, with recomputes here and there whether they serve anything or not."""
    schedule: list[int] = []
    for stage in range(len(graph)):
        earlier = [i for i in range(stage) if graph.ops[i].recomputable]
        again = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True)) if earlier else []
        schedule.extend([*sorted(again), stage])
    return schedule


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    graph = random_graph(draw(seeds), most_ops=12)
    return graph, wasteful_schedule(graph, draw)


@many
@given(given_schedule=schedules())
def test_dropping_what_is_unused_costs_nothing(given_schedule):
    graph, schedule = given_schedule
    cleaned = drop_unused(find_lifetimes(graph), schedule)
    assert peak_of(graph, cleaned) <= peak_of(graph, schedule)
    assert time_of(graph, cleaned) <= time_of(graph, schedule)
    assert drop_unused(find_lifetimes(graph), cleaned) == cleaned


@many
@given(given_schedule=schedules(), slack=st.integers(min_value=0, max_value=6))
def test_merging_keeps_to_the_budget_and_is_never_slower(given_schedule, slack):
    graph, schedule = given_schedule
    budget = peak_of(graph, schedule) + slack
    merged = merge_recomputes(find_lifetimes(graph), schedule, budget, should_stop=lambda: False)
    assert peak_of(graph, merged) <= budget
    assert time_of(graph, merged) <= time_of(graph, schedule)


@many
@given(given_schedule=schedules())
def test_merging_without_a_limit_recomputes_nothing(given_schedule):
    graph, schedule = given_schedule
    merged = merge_recomputes(find_lifetimes(graph), schedule, 10**9, should_stop=lambda: False)
    assert tuple(merged) == store_all_schedule(graph)


@many
@given(seed=seeds, share=shares, rule=st.sampled_from(RULES))
def test_a_fitted_schedule_fits(seed, share, rule):
    graph = random_graph(seed, fewest_ops=4, most_ops=14)
    budget = budget_between(graph, share)
    store_all = store_all_schedule(graph)
    fitted = fit_schedule(find_lifetimes(graph), store_all, budget, rule=rule, should_stop=lambda: False)
    if fitted is not None:
        assert peak_of(graph, fitted) <= budget
    elif share == 1.0:
        pytest.fail("store-all fits as it is")


@many
@given(
    amounts=st.lists(st.integers(min_value=0, max_value=50), min_size=1, max_size=700),
    changes=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700), st.integers(-5, 5)), max_size=8),
)
def test_a_timeline_is_a_list(amounts, changes):
    timeline, plain = Timeline(amounts), list(amounts)
    for first, second, amount in changes:
        start, end = sorted((min(first, len(plain)), min(second, len(plain))))
        timeline.raise_by(start, end, amount)
        plain[start:end] = [old + amount for old in plain[start:end]]
        if start < end:
            assert timeline.highest(start, end) == max(plain[start:end])
        assert timeline.highest(0, len(plain)) == max(plain)
