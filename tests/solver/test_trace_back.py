"""Tracing ops back: worked examples, and never above what the search over all schedules finds feasible."""

import pytest

from remat_solver.bounds import tightest_first, working_set_bound
from remat_solver.errors import InfeasibleBudget
from remat_solver.graph import Graph
from remat_solver.solve import solve
from remat_solver.strategies.trace_back import TraceBack
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import op
from tests.solver.random_graphs import random_graph


def waiting_gradient() -> Graph:
    """`left` and `right` come from large temporary memory, and `use` needs both: one waits while the other is made."""
    return Graph(
        ops=(
            op("left", sizes=(4,), workspace_bytes=6),
            op("right", sizes=(4,), workspace_bytes=6),
            op("use", 0, 1, sizes=(1,)),
        )
    )


def bound_of(graph: Graph, *, at_least: int = 0, node_limit: int = 300) -> int:
    """Bytes below which nothing fits, from tracing every op back."""
    trace_back = TraceBack(graph)
    bound = at_least
    for traced in tightest_first(graph):
        bound = trace_back.bound_bytes(traced, at_least=bound, node_limit=node_limit)
    return bound


def test_one_of_two_inputs_waits_while_the_other_is_computed():
    graph = waiting_gradient()
    assert working_set_bound(graph) == 10
    assert bound_of(graph) == 4 + 4 + 6
    assert free_optimum(graph, 13) is None
    assert free_optimum(graph, 14) is not None


def test_what_comes_from_an_op_that_may_not_run_again_waits():
    ops = (
        op("once", sizes=(4,), recomputable=False),
        op("small", 0, sizes=(2,)),
        op("large", sizes=(1,), workspace_bytes=10),
        op("use", 1, 2, sizes=(1,)),
    )
    assert bound_of(Graph(ops=ops)) == 2 + 1 + 10


def test_the_bound_is_raised_from_what_is_known():
    assert bound_of(waiting_gradient(), at_least=50) == 50


def test_the_search_ends_when_enough_is_proven_or_its_nodes_are_used_up():
    trace_back = TraceBack(waiting_gradient())
    assert trace_back.bound_bytes(2, at_least=10, enough=10) == 14
    assert trace_back.bound_bytes(2, node_limit=0) == 9
    assert trace_back.nodes > 0


def test_whoever_stops_gets_what_is_proven_so_far():
    assert TraceBack(waiting_gradient()).bound_bytes(2, should_stop=lambda: True) == 9


def test_never_above_the_least_feasible_budget_and_mostly_equal():
    higher = equal = 0
    count = 600
    for seed in range(count):
        graph = random_graph(seed, most_ops=6)
        bound = bound_of(graph, node_limit=10**6)
        assert bound >= working_set_bound(graph), seed
        assert bound <= 1 or free_optimum(graph, bound - 1) is None, seed
        higher += bound > working_set_bound(graph)
        equal += free_optimum(graph, bound) is not None
    assert higher >= count // 50
    assert equal >= 9 * count // 10


def test_fewer_nodes_prove_less_but_never_something_wrong():
    for seed in range(200):
        graph = random_graph(seed, most_ops=6)
        assert bound_of(graph, node_limit=2) <= bound_of(graph, node_limit=10**6), seed


def test_a_solve_names_the_budgets_that_are_out_of_the_question():
    with pytest.raises(InfeasibleBudget) as refused:
        solve(waiting_gradient(), budget_bytes=10)
    assert refused.value.fields["proven_infeasible_below_bytes"] == 14
    assert refused.value.fields["proof_scope"] == "order"
