"""The dense program on cases worked out by hand: one for each thing that it adds to the printed one."""

from __future__ import annotations

import dataclasses

import pytest

from remat_solver.errors import InfeasibleBudget, InvalidRequest, NoPlanInTime, SolveCancelled
from remat_solver.formulation.checkmate import build_dense
from remat_solver.graph import Graph, Op, Value
from remat_solver.plan import Plan
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve
from tests.solver.graphs import chain, op
from tests.solver.random_graphs import random_graph


def plan_for(graph: Graph, budget_bytes: int, **options: object) -> Plan:
    asked = {"strategy": "checkmate", "engine": "highs", "gap": 0.0, **options}
    return solve(graph, budget_bytes=budget_bytes, **asked)


def least_budget(graph: Graph) -> int:
    """The least budget that the dense program proves feasible, by bisection."""
    low, high = 0, simulate(graph, store_all_schedule(graph)).peak_bytes
    while high - low > 1:
        middle = (low + high) // 2
        try:
            plan_for(graph, middle)
        except InfeasibleBudget:
            low = middle
        else:
            high = middle
    return high


def detour(**source: object) -> Graph:
    """Op a is read at both ends; the middle needs room: either keep a (4 bytes) or run it again."""
    a = Op(name="a", time_ns=3, writes=(Value(size_bytes=4),))
    return Graph(
        ops=(
            dataclasses.replace(a, **source),
            op("b", 0, sizes=(1,)),
            Op(name="c", time_ns=1, reads=(1,), writes=(Value(size_bytes=1),), workspace_bytes=6),
            op("d", 0, 2, sizes=(1,)),
        )
    )


def test_it_keeps_what_fits_and_recomputes_what_does_not() -> None:
    assert plan_for(detour(), 12).schedule == (0, 1, 2, 3)
    tight = plan_for(detour(), 11)
    assert tight.schedule == (0, 1, 2, 0, 3)
    assert (tight.time_ns, tight.bound_ns, tight.peak_bytes, tight.proof_scope) == (9, 9, 8, "checkmate")
    assert least_budget(detour()) == 8


def test_an_op_that_may_not_be_recomputed_is_kept() -> None:
    assert least_budget(detour(recomputable=False)) == 12


def test_keep_pins_are_obeyed() -> None:
    with pytest.raises(InfeasibleBudget):
        plan_for(detour(), 11, keep=("a",))


def test_an_output_stays_and_is_not_counted_twice() -> None:
    graph = dataclasses.replace(detour(), outputs=(0,))
    assert least_budget(graph) == 12
    assert plan_for(graph, 12).schedule == (0, 1, 2, 3)


def test_replay_state_is_held_from_the_first_run_to_the_last_recompute() -> None:
    graph = detour(recompute_state_bytes=2)
    assert least_budget(graph) == 10
    assert plan_for(graph, 10).schedule == (0, 1, 2, 0, 3)
    assert plan_for(graph, 12).schedule == (0, 1, 2, 3)


def test_replay_state_is_there_while_the_last_recompute_runs() -> None:
    graph = detour(recompute_state_bytes=2, workspace_bytes=4)
    assert least_budget(graph) == 1 + 4 + 4 + 2


def test_replay_state_is_there_while_the_first_run_is_on() -> None:
    graph = Graph(
        ops=(
            op("z", sizes=(5,), recomputable=False),
            Op(name="a", time_ns=3, writes=(Value(size_bytes=4),), workspace_bytes=6, recompute_state_bytes=2),
            op("b", 0, 1, sizes=(1,)),
            Op(name="c", time_ns=1, reads=(2,), writes=(Value(size_bytes=1),), workspace_bytes=12),
            op("d", 1, 3, sizes=(1,)),
        )
    )
    assert least_budget(graph) == 5 + 4 + 6 + 2


def test_values_of_one_op_die_separately() -> None:
    """Keeping both values of a costs 4 + 4 in the middle; only the second is read later."""
    graph = Graph(
        ops=(
            op("a", sizes=(4, 4)),
            op("b", 0, sizes=(1,)),
            Op(name="c", time_ns=1, reads=(2,), writes=(Value(size_bytes=1),), workspace_bytes=6),
            op("d", 1, 3, sizes=(1,)),
        )
    )
    assert plan_for(graph, 12).schedule == (0, 1, 2, 3)
    assert plan_for(graph, 11).schedule == (0, 1, 2, 0, 3)


def test_one_byte_decides_among_gigabytes() -> None:
    giga = 10**10
    graph = Graph(
        ops=(
            op("a", sizes=(4 * giga,)),
            op("b", 0, sizes=(giga,)),
            Op(name="c", time_ns=1, reads=(1,), writes=(Value(size_bytes=giga),), workspace_bytes=6 * giga),
            op("d", 0, 2, sizes=(giga,)),
        )
    )
    assert plan_for(graph, 12 * giga).time_ns == 4
    assert plan_for(graph, 12 * giga - 1).time_ns == 5
    assert plan_for(graph, 8 * giga).time_ns == 5
    with pytest.raises(InfeasibleBudget):
        plan_for(graph, 8 * giga - 1)


def test_recompute_pins_keep_values_from_crossing() -> None:
    graph = chain(3)
    free = plan_for(graph, 1000)
    pinned = plan_for(graph, 1000, recompute=("f0",))
    assert free.schedule == store_all_schedule(graph)
    assert pinned.run_counts[0] == 2
    assert pinned.time_ns == free.time_ns + 1


def test_contradicting_pins_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        plan_for(chain(3), 1000, recompute=("f0",), keep=("f0",))


def test_running_out_of_time_is_not_infeasible() -> None:
    graph = random_graph(7, fewest_ops=60, most_ops=60)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    with pytest.raises(NoPlanInTime):
        plan_for(graph, peak - 1, time_limit_s=0.01)


def test_a_caller_who_stops_before_any_plan_gets_no_verdict() -> None:
    graph = random_graph(7, fewest_ops=60, most_ops=60)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    with pytest.raises(SolveCancelled):
        plan_for(graph, peak - 1, should_stop=lambda: True)


def test_the_program_has_the_printed_size() -> None:
    """n(n-1)/2 columns R, as many S (one value per op), n(n+1)/2 levels, and a Free for each use in each stage."""
    graph = dataclasses.replace(chain(3), outputs=())
    n = len(graph)
    uses = 0
    for stage in range(n):
        uses += sum(len(graph.ops[k].reads) + len(graph.ops[k].writes) for k in range(stage))
    program = build_dense(graph, 100).program
    assert program.column_count == n * (n - 1) + n * (n + 1) // 2 + uses
