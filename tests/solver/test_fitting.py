"""Evictions: what is given up when memory runs out."""

from remat_solver.formulation.lifetimes import find_lifetimes
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.strategies.fitting import EvictionRule, fit_schedule
from tests.solver.graphs import op


def test_a_small_input_stays_so_that_the_large_value_made_of_it_is_cheap_to_make_again():
    slow_and_small = op("convolution", time_ns=100)
    cheap_and_large = op("concatenation", 0, sizes=(10,))
    rival = op("rival", sizes=(10,), time_ns=50)
    between = (op("large", sizes=(12,)), op("reader", 3))
    graph = Graph(ops=(slow_and_small, cheap_and_large, rival, *between, op("end", 1, 2, 4)), outputs=(5,))

    def recomputed(input_share: float) -> list[int]:
        rule = EvictionRule(input_share=input_share)
        fitted = fit_schedule(
            find_lifetimes(graph), store_all_schedule(graph), 24, rule=rule, should_stop=lambda: False
        )
        assert fitted is not None
        assert simulate(graph, fitted).peak_bytes <= 24
        return [op for step, op in enumerate(fitted) if op in fitted[:step]]

    assert recomputed(0.25) == [1]
    assert recomputed(0.0) == [2]
    assert recomputed(0.05) == [2], "an input that is no smaller than that goes as before"
