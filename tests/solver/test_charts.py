"""What charts show: no peak lost, moments in order, recomputations dearest first."""

import dataclasses

from remat_solver.charts import asset
from remat_solver.charts.recomputed import recomputed_ops, schedule_matrix
from remat_solver.charts.timeline import MAX_POINTS, plan_timeline, store_all_timeline
from remat_solver.graph import Graph
from remat_solver.plan import Plan, Provenance, referee_plan
from remat_solver.simulate import simulate, store_all_schedule
from tests.solver.graphs import chain, op

SCHEDULE = (0, 1, 2, 3, 4, 0, 5)


def plan_for(graph: Graph, schedule: tuple[int, ...]) -> Plan:
    return referee_plan(
        graph,
        schedule,
        budget_bytes=10**6,
        bound_ns=0,
        proof_scope="order",
        provenance=Provenance(strategy="by hand"),
    )


def test_long_timelines_are_thinned_without_losing_the_peak() -> None:
    graph = chain(3000)
    line = store_all_timeline(graph)
    assert len(line.in_use_bytes) <= MAX_POINTS + 2
    assert max(line.in_use_bytes) == simulate(graph, store_all_schedule(graph)).peak_bytes
    assert list(line.start_ms) == sorted(set(line.start_ms))


def test_ops_that_take_no_time_share_a_moment() -> None:
    graph = chain(3)
    instant = dataclasses.replace(graph, ops=tuple(dataclasses.replace(one, time_ns=0) for one in graph.ops))
    line = plan_timeline(instant, plan_for(instant, SCHEDULE), "plan")
    assert (line.start_ms, line.in_use_bytes) == ((0.0,), (35,))


def test_recomputed_ops_come_dearest_first() -> None:
    graph = Graph(ops=(op("cheap", time_ns=1), op("dear", time_ns=9, sizes=(3, 4)), op("last", 0, 1)))
    (first, second) = recomputed_ops(graph, plan_for(graph, (0, 1, 0, 1, 1, 2)))
    assert (first.name, first.run_count, first.extra_time_ns, first.size_bytes) == ("dear", 3, 18, 7)
    assert (second.name, second.run_count, second.extra_time_ns) == ("cheap", 2, 1)


def test_the_matrix_tells_first_runs_from_others() -> None:
    matrix = schedule_matrix(plan_for(chain(3), SCHEDULE))
    assert (matrix.first_ops, matrix.first_steps) == ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 6))
    assert (matrix.again_ops, matrix.again_steps) == ((0,), (5,))


def test_scripts_could_stand_inside_a_page() -> None:
    for name in ("uPlot.iife.min.js", "charts.js"):
        assert "</script" not in asset(name)
