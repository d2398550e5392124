"""A graph can't be built invalid, and its hash is the planning problem's."""

import dataclasses
import random

import pytest

from remat_solver.errors import InvalidGraph
from remat_solver.graph import MAX_BYTES, Graph, Op, Value
from tests.solver.graphs import chain, op


def test_derived_tables() -> None:
    graph = Graph(ops=(op("a", sizes=(1, 2)), op("b", 0), op("c", 1, 2, sizes=())), outputs=(2,))
    assert graph.sizes == (1, 2, 1)
    assert graph.producer == (0, 0, 1)
    assert graph.readers == ((1,), (2,), (2,))
    assert list(graph.written_by(0)) == [0, 1]
    assert list(graph.written_by(2)) == []
    assert graph.is_output == (False, False, True)
    assert graph.total_time_ns == 3


@pytest.mark.parametrize(
    ("ops", "fields", "says"),
    [
        ((), {}, "no ops"),
        ((op("late", 1), op("b")), {}, r"op 0 \('late'\) reads value 1, which it or a later op writes.*cycle"),
        ((op("own", 0),), {}, r"'own'.*cycle"),
        ((op("dangling", 7),), {}, r"'dangling'.*reads value 7, which no op writes"),
        ((op("negative", -1),), {}, r"'negative'.*value -1"),
        ((op("a"), op("twice", 0, 0)), {}, r"'twice'.*twice"),
        ((op("slow", time_ns=-1),), {}, r"'slow'.*time_ns is -1"),
        ((op("nan", time_ns=float("nan")),), {}, r"'nan'.*time_ns is nan, not an integer"),
        ((op("inf", time_ns=float("inf")),), {}, r"'inf'.*not an integer"),
        ((op("float", time_ns=1.0),), {}, r"'float'.*not an integer"),
        ((op("bool", time_ns=True),), {}, r"'bool'.*not an integer"),
        ((op("huge", sizes=(MAX_BYTES + 1,)),), {}, r"'huge'.*size_bytes.*outside"),
        ((op("work", workspace_bytes=-2),), {}, r"'work'.*workspace_bytes"),
        ((op("state", recompute_state_bytes=-2),), {}, r"'state'.*recompute_state_bytes"),
        ((op("phase", phase="sideways"),), {}, r"'phase'.*sideways"),
        ((op("a"),), {"outputs": (3,)}, "outputs.*3"),
        ((op("a"),), {"outputs": (0, 0)}, "outputs.*twice"),
        ((op("a"),), {"fixed_bytes": -1}, "fixed_bytes"),
        ((op("a"),), {"schema": "remat.graph/99"}, "schema"),
    ],
)
def test_invalid_graphs_are_refused(ops: tuple[Op, ...], fields: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidGraph, match=says):
        Graph(ops=ops, **fields)  # type: ignore[arg-type]


def test_the_error_names_the_op_and_a_next_step() -> None:
    with pytest.raises(InvalidGraph) as caught:
        Graph(ops=(op("a"), op("bad", 5)))
    assert caught.value.op == "bad"
    assert "numbered 0 to 1" in caught.value.hint


def test_hash_ignores_names_and_order_free_metadata() -> None:
    graph = chain(3)
    renamed = dataclasses.replace(
        graph,
        name="other",
        device="cpu",
        estimated=True,
        ops=tuple(
            dataclasses.replace(
                one,
                name=f"x{index}",
                signature="s",
                reads=tuple(reversed(one.reads)),
                writes=tuple(dataclasses.replace(value, name="v") for value in one.writes),
            )
            for index, one in enumerate(graph.ops)
        ),
    )
    assert renamed.hash == graph.hash


@pytest.mark.parametrize(
    "change",
    [
        {"time_ns": 2},
        {"workspace_bytes": 1},
        {"recomputable": False},
        {"recompute_state_bytes": 1},
        {"phase": "backward"},
        {"reads": ()},
        {"writes": (Value(size_bytes=11),)},
    ],
)
def test_hash_covers_every_cost(change: dict[str, object]) -> None:
    graph = chain(3)
    changed = list(graph.ops)
    changed[1] = dataclasses.replace(changed[1], **change)  # type: ignore[arg-type]
    assert dataclasses.replace(graph, ops=tuple(changed)).hash != graph.hash


def test_hash_covers_outputs_and_fixed_bytes() -> None:
    graph = chain(3)
    assert dataclasses.replace(graph, fixed_bytes=6).hash != graph.hash
    assert dataclasses.replace(graph, outputs=(4, 5)).hash != graph.hash


def test_golden_hash() -> None:
    """Other clients compute it too: it may change only with the schema's version."""
    assert chain(3).hash == "b99d7c845e798fcef9bb295ff2e7626a6483d182de530e13c57f757a0476828e"


def test_random_graphs_survive_replace() -> None:
    generator = random.Random(0)
    for _ in range(20):
        graph = chain(generator.randint(1, 6), generator.randint(0, 100))
        assert dataclasses.replace(graph) == graph


def test_structure_hash_ignores_what_was_measured_and_nothing_else() -> None:
    graph = Graph(ops=(op("a", sizes=(4,)), op("b", 0, sizes=(4,))), outputs=(1,), fixed_bytes=7)
    measured = tuple(dataclasses.replace(each, time_ns=5, workspace_bytes=9) for each in graph.ops)
    assert dataclasses.replace(graph, ops=measured, fixed_bytes=8).structure_hash == graph.structure_hash
    once = (dataclasses.replace(graph.ops[0], recomputable=False), graph.ops[1])
    assert dataclasses.replace(graph, ops=once).structure_hash != graph.structure_hash
    assert dataclasses.replace(graph, outputs=(0, 1)).structure_hash != graph.structure_hash
