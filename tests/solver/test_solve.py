"""The entry points: options, errors, progress, cancellation, pins, frontier, least budget, least memory."""

from dataclasses import replace

import pytest

from remat_solver.bounds import working_set_bound
from remat_solver.errors import (
    InfeasibleBudget,
    InvalidRequest,
    NoPlanInTime,
    SolveCancelled,
    StrategyNotApplicable,
)
from remat_solver.graph import Graph
from remat_solver.options import Progress, SolveOptions, matching_ops
from remat_solver.plan import confirm_plan
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import frontier, minimum_budget, solve
from tests.solver.graphs import chain, op

GRAPH = chain(9)
STORE_ALL_PEAK = simulate(GRAPH, store_all_schedule(GRAPH)).peak_bytes


def test_a_budget_in_bytes_and_as_a_fraction_ask_the_same():
    by_fraction = solve(GRAPH, budget_fraction=0.6)
    by_bytes = solve(GRAPH, SolveOptions(budget_bytes=int(0.6 * STORE_ALL_PEAK)))
    assert by_fraction.schedule == by_bytes.schedule
    assert by_fraction.budget_bytes == int(0.6 * STORE_ALL_PEAK)


def test_a_plan_says_how_it_came_to_be_and_the_referee_confirms_it():
    plan = solve(GRAPH, budget_fraction=0.6, gap=0)
    assert confirm_plan(GRAPH, plan).peak_bytes == plan.peak_bytes <= plan.budget_bytes
    assert plan.status == "optimal"
    assert plan.recompute_count > 0
    how = plan.provenance
    assert (how.strategy, how.engine, how.requested_gap, how.stopped_by) == ("memory_cuts", "cbc", 0, "")
    assert how.rounds >= 1
    assert how.slots >= 1
    assert how.rows > 0
    assert how.columns > 0
    assert how.engine_version.startswith("2.")


def test_same_question_same_answer():
    first, second = (solve(GRAPH, budget_fraction=0.5) for _ in range(2))
    assert first.schedule == second.schedule
    assert first.bound_ns == second.bound_ns


def test_the_store_all_peak_needs_no_engine_and_no_recomputation():
    plan = solve(GRAPH, budget_bytes=STORE_ALL_PEAK)
    assert plan.schedule == store_all_schedule(GRAPH)
    assert plan.provenance.engine == ""
    assert plan.gap == 0


def test_below_the_working_set_bound_no_engine_is_asked():
    bound = working_set_bound(GRAPH)
    with pytest.raises(InfeasibleBudget) as caught:
        solve(GRAPH, budget_bytes=bound - 1)
    assert caught.value.proven_infeasible_below_bytes == bound
    assert caught.value.known_feasible_bytes == STORE_ALL_PEAK
    assert caught.value.proof_scope == "order"
    assert caught.value.budget_bytes == bound - 1


def test_no_time_is_not_infeasibility():
    with pytest.raises(NoPlanInTime) as caught:
        solve(GRAPH, budget_fraction=0.5, time_limit_s=0)
    assert caught.value.known_feasible_bytes == STORE_ALL_PEAK
    assert caught.value.time_limit_s == 0


def test_a_caller_who_stops_before_any_plan_hears_that():
    with pytest.raises(SolveCancelled):
        solve(GRAPH, budget_fraction=0.5, should_stop=lambda: True)


def test_a_caller_who_stops_later_gets_the_best_plan():
    """A gap of 0 on a graph that the first round can't close: stop once there is a plan."""
    graph = chain(40)
    seen: list[Progress] = []
    plan = solve(
        graph,
        budget_bytes=working_set_bound(graph) + 30,
        gap=0,
        on_progress=seen.append,
        should_stop=lambda: any(progress.incumbent_ns is not None for progress in seen),
    )
    assert plan.peak_bytes <= plan.budget_bytes
    assert plan.provenance.stopped_by == ("caller" if plan.time_ns > plan.bound_ns else "")


def test_progress_only_gets_better():
    seen: list[Progress] = []
    graph = chain(30)
    plan = solve(graph, budget_bytes=working_set_bound(graph) + 40, on_progress=seen.append, time_limit_s=3)
    assert seen
    bounds = [progress.bound_ns for progress in seen]
    assert bounds == sorted(bounds)
    incumbents = [progress.incumbent_ns for progress in seen if progress.incumbent_ns is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    assert seen[-1].incumbent_ns == plan.time_ns
    assert seen[-1].bound_ns <= plan.time_ns


@pytest.mark.parametrize(
    "fields",
    [{}, {"budget_bytes": 1, "budget_fraction": 0.5}, {"budget_fraction": 0.5, "strategy": "magic"}, {"budget": 3}],
)
def test_questions_that_make_no_sense(fields):
    with pytest.raises(InvalidRequest):
        solve(GRAPH, **fields)


def test_ops_without_time_and_values_without_bytes():
    ops = (op("a", sizes=(0, 5), time_ns=0), op("b", 0, sizes=(5,), time_ns=0), op("c", 1, 2, sizes=(5,), time_ns=0))
    graph = Graph(ops=ops)
    assert solve(graph, budget_bytes=15).overhead == 0
    freely = (op("a", sizes=(9,), time_ns=0), op("b", sizes=(9,)), op("c", 1, sizes=(2,)), op("d", 0, 2, sizes=(1,)))
    plan = solve(Graph(ops=freely), budget_bytes=12)
    assert plan.recompute_count == 1
    assert plan.overhead == 0


def test_keep_pins_are_never_recomputed():
    free = solve(GRAPH, budget_fraction=0.6)
    recomputed = {GRAPH.ops[i].name for i, runs in free.run_counts.items() if runs > 1}
    kept = min(recomputed)
    plan = solve(GRAPH, budget_fraction=0.6, keep=(kept,))
    pinned = next(i for i, op in enumerate(GRAPH.ops) if op.name == kept)
    assert plan.run_counts[pinned] == 1
    assert plan.graph_hash == GRAPH.hash


def test_recompute_pins_do_not_cross_into_the_backward_pass():
    plan = solve(GRAPH, budget_bytes=STORE_ALL_PEAK, recompute=("f3", "f4"))
    for pinned in (3, 4):
        runs = [step for step, op in enumerate(plan.schedule) if op == pinned]
        assert len(runs) == 2
        assert runs[0] < plan.schedule.index(8) < runs[1]
    assert plan.recompute_count == 2


def test_pins_that_cannot_be_honoured():
    with pytest.raises(InvalidRequest, match="matches"):
        solve(GRAPH, budget_fraction=0.6, keep=("nothing*",))
    with pytest.raises(InvalidRequest, match="both"):
        solve(GRAPH, budget_fraction=0.6, keep=("f3",), recompute=("f*",))
    with pytest.raises(StrategyNotApplicable):
        solve(Graph(ops=(op("a"), op("b", 0))), budget_bytes=2, recompute=("a",))


def test_a_frontier_is_monotone_and_ends_at_store_all():
    told = []
    plans = frontier(GRAPH, points=6, time_limit_s=30, on_point=told.append)
    budgets = [plan.budget_bytes for plan in plans]
    assert budgets == sorted(budgets)
    assert budgets[-1] == STORE_ALL_PEAK
    assert plans[-1].recompute_count == 0
    times = [plan.time_ns for plan in plans]
    assert times == sorted(times, reverse=True)
    assert all(plan.bound_ns <= plan.time_ns for plan in plans)
    assert tuple(reversed(told)) == plans


def test_the_minimum_budget_has_a_plan_and_one_byte_less_has_none():
    graph = chain(8)
    least = minimum_budget(graph, gap=0, time_limit_s=30)
    assert least.plan.budget_bytes == least.proven_infeasible_below_bytes
    with pytest.raises(InfeasibleBudget):
        solve(graph, budget_bytes=least.proven_infeasible_below_bytes - 1, gap=0)


def test_least_memory_within_an_allowance_of_time():
    plan = solve(GRAPH, max_overhead=0.1, gap=0, time_limit_s=30)
    assert plan.objective == "memory"
    assert plan.overhead <= 0.1
    assert plan.bound_bytes <= plan.peak_bytes < STORE_ALL_PEAK
    faster = solve(GRAPH, budget_bytes=plan.peak_bytes, gap=0)
    assert faster.overhead <= 0.1
    assert plan.status == "optimal"
    with pytest.raises(StrategyNotApplicable):
        solve(GRAPH, max_overhead=0.1, strategy="store_all")


def test_a_pin_names_a_module_by_the_path_that_its_ops_start_with():
    graph = replace(GRAPH, ops=tuple(replace(op, name=f"blocks.{i}.{op.name}") for i, op in enumerate(GRAPH.ops)))
    assert matching_ops(graph, ("blocks.1",)) == {1}
    assert matching_ops(graph, ("blocks.1?",)) == set(range(10, len(graph)))
    assert matching_ops(graph, ("blocks",)) == set(range(len(graph)))
