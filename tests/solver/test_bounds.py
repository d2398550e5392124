"""The working-set bound: worked examples, and never above what is feasible."""

from remat_solver.bounds import tightest_first, working_set_bound, working_sets
from remat_solver.graph import Graph
from tests.solver.free_optimum import free_optimum
from tests.solver.graphs import chain, op
from tests.solver.random_graphs import random_graph


def test_counts_reads_writes_workspace_and_what_is_fixed():
    graph = Graph(ops=(op("a", sizes=(3, 4)), op("b", 1, sizes=(5,), workspace_bytes=2)), fixed_bytes=10)
    assert working_set_bound(graph) == 10 + max(3 + 4, 4 + 5 + 2)


def test_a_union_counts_an_output_that_is_read_once():
    graph = Graph(ops=(op("a", sizes=(7,)), op("b", 0, sizes=(1,)), op("c", 1, sizes=(1,))), outputs=(0,))
    assert working_set_bound(graph) == 7 + 1 + 1


def test_a_value_that_cannot_be_recomputed_stays_until_its_last_reader():
    ops = (op("a", sizes=(7,), recomputable=False), op("b", sizes=(2,)), op("c", 1, sizes=(2,)), op("d", 0, sizes=(1,)))
    assert working_set_bound(Graph(ops=ops)) == 7 + 2 + 2
    unread = (op("a", sizes=(7,), recomputable=False), op("b", sizes=(2,)), op("c", 1, sizes=(2,)))
    assert working_set_bound(Graph(ops=unread)) == 7


def test_each_op_has_its_own_working_set_and_the_tightest_come_first():
    graph = Graph(ops=(op("a", sizes=(3,)), op("b", 0, sizes=(5,)), op("c", 0, 1, sizes=(2,)), op("d", 2, sizes=(8,))))
    assert working_sets(graph) == [3, 3 + 5, 3 + 5 + 2, 2 + 8]
    assert tightest_first(graph) == [2, 3, 1, 0]


def test_chain():
    assert working_set_bound(chain(6)) == 5 + 10 + 10 + 10


def test_nothing_fits_below_the_bound():
    for seed in range(150):
        graph = random_graph(seed, most_ops=5)
        bound = working_set_bound(graph)
        assert bound <= 1 or free_optimum(graph, bound - 1) is None, seed
