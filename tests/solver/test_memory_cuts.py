"""Memory cuts: any choice of slots is a relaxation, all of them are Checkmate, and the loop gets there."""

import random

import pytest

from remat_solver.engines import engine_named
from remat_solver.engines.base import Limits
from remat_solver.errors import InfeasibleBudget
from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.formulation.memory_cuts import Cover, build_model, proof_scope
from remat_solver.graph import Graph
from remat_solver.plan import Plan
from remat_solver.solve import solve
from tests.solver.brute_force import exhaustive_optimum
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import op
from tests.solver.random_graphs import random_budget, random_graph


def model_bound(graph: Graph, slots: list[tuple[int, int]], budget_bytes: int) -> float:
    """The optimum of the model with these slots, in ns; infinite if it has none."""
    model = build_model(find_lifetimes(graph), slots, budget_bytes)
    if model.contradiction:
        return float("inf")
    if not model.program.column_count:
        return graph.total_time_ns
    outcome = engine_named("highs").solve(model.program, Limits(time_limit_s=60))
    if outcome.termination == "infeasible":
        return float("inf")
    assert outcome.termination == "optimal"
    assert outcome.objective is not None
    return graph.total_time_ns + outcome.objective * model.scale.time_unit


def all_slots(graph: Graph) -> list[tuple[int, int]]:
    return [(stage, op) for stage in range(len(graph)) for op in range(stage + 1)]


def ask(graph: Graph, budget_bytes: int) -> Plan | InfeasibleBudget:
    """What solve says, with a gap of 0."""
    try:
        return solve(graph, budget_bytes=budget_bytes, gap=0, engine="highs")
    except InfeasibleBudget as error:
        return error


def test_any_slots_give_a_lower_bound_for_checkmate():
    for seed in range(60):
        graph = random_graph(seed, most_ops=6)
        budget = random_budget(graph, seed)
        optimum = exhaustive_optimum(graph, budget)
        slots = [slot for slot in all_slots(graph) if random.Random(f"{seed} {slot}").random() < 0.4]
        bound = model_bound(graph, slots, budget)
        assert optimum is None or bound <= optimum.time_ns + 1e-6, seed


def test_first_computations_alone_give_a_bound_for_every_order():
    for seed in range(60):
        graph = random_graph(seed, most_ops=5)
        budget = random_budget(graph, seed)
        optimum = free_optimum(graph, budget)
        slots = [(stage, stage) for stage in range(len(graph)) if random.Random(f"{seed} {stage}").random() < 0.7]
        assert proof_scope(slots) == "order"
        assert optimum is None or model_bound(graph, slots, budget) <= optimum + 1e-6, seed


def test_all_slots_are_checkmate():
    for seed in range(60):
        graph = random_graph(seed, most_ops=6)
        budget = random_budget(graph, seed)
        optimum = exhaustive_optimum(graph, budget)
        expected = float("inf") if optimum is None else optimum.time_ns
        assert model_bound(graph, all_slots(graph), budget) == pytest.approx(expected), seed


def freer_than_checkmate() -> Graph:
    """Fits in 7 bytes only if c runs before b does again, or the like: never in index order (from the design)."""
    return Graph(
        ops=(
            op("a", sizes=(4,)),
            op("b", 0, sizes=(1,)),
            op("c", 1, sizes=(1,), workspace_bytes=3),
            op("e", sizes=(1,), workspace_bytes=6),
            op("d", 0, 2, 3, sizes=(1,)),
        )
    )


def test_an_infeasibility_names_the_class_for_which_it_is_proven():
    graph = freer_than_checkmate()
    assert exhaustive_optimum(graph, 7) is None
    assert free_optimum(graph, 7) is not None
    answer = ask(graph, 7)
    if isinstance(answer, InfeasibleBudget):
        assert answer.proof_scope == "checkmate"
        assert "at most once in a stage fits in 7 bytes" in str(answer)
    else:
        assert answer.time_ns >= free_optimum(graph, 7)


def test_a_cover_cuts_off_exactly_what_it_names():
    graph = Graph(ops=(op("a", sizes=(4,)), op("b", sizes=(4,)), op("c", 0, 1, sizes=(1,))))
    lifetimes = find_lifetimes(graph)
    free = build_model(lifetimes, [(1, 1)], 20)
    cut = build_model(lifetimes, [(1, 1)], 20, covers=[Cover(slot=(1, 1), values=frozenset({0, 1}), runs=True)])
    cheapest = engine_named("highs").solve(free.program, Limits(time_limit_s=60)).objective
    dearer = engine_named("highs").solve(cut.program, Limits(time_limit_s=60)).objective
    assert cheapest == 0
    assert dearer is not None
    assert dearer > 0


def test_values_of_one_op_die_separately():
    graph = Graph(
        ops=(
            op("norm", sizes=(9, 1)),
            op("big", sizes=(9,)),
            op("reads_big", 2, sizes=(1,)),
            op("reads_statistics", 1, 3, sizes=(1,)),
        )
    )
    assert solve(graph, budget_bytes=11).recompute_count == 0


def test_optimal_plans_agree_with_exhaustive_search():
    """The wider agreement, with the dense formulation too, is in test_agreement."""
    scopes = set()
    for seed in (793, 823, *range(300, 370)):
        graph = random_graph(seed, most_ops=6)
        budget = random_budget(graph, seed)
        within_class = exhaustive_optimum(graph, budget)
        free = free_optimum(graph, budget)
        answer = ask(graph, budget)
        scopes.add(answer.proof_scope)
        if isinstance(answer, InfeasibleBudget):
            assert (free if answer.proof_scope == "order" else within_class) is None, seed
            assert answer.proven_infeasible_below_bytes > budget
            continue
        assert answer.status == "optimal", seed
        assert free is not None
        assert answer.time_ns >= free, seed
        if answer.proof_scope == "order":
            assert answer.time_ns == free, seed
        elif within_class is not None:
            assert answer.time_ns <= within_class.time_ns, seed
    assert scopes == {"order", "checkmate"}
