"""The referee is itself refereed: by hand and by a second, naive replay."""

import random

import pytest

from remat_solver.errors import InvalidPlan
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule
from tests.solver.graphs import chain, op
from tests.solver.naive_replay import naive_timeline


def test_store_all_chain_by_hand() -> None:
    replay = simulate(chain(3), store_all_schedule(chain(3)))
    # 5 fixed; f0 f1 f2 pile up to 30; b2 adds its gradient; b1 frees f2 but holds two gradients
    assert replay.timeline_bytes == (15, 25, 35, 45, 45, 35)
    assert (replay.peak_bytes, replay.peak_step, replay.time_ns, replay.recompute_count) == (45, 3, 6, 0)


def test_recomputing_by_hand() -> None:
    # f0 is dropped after f1 and computed again for b0
    replay = simulate(chain(3), (0, 1, 2, 3, 4, 0, 5))
    assert replay.timeline_bytes == (15, 25, 25, 35, 35, 25, 35)
    assert (replay.time_ns, replay.recompute_count) == (7, 1)


def test_workspace_counts_only_while_its_op_runs() -> None:
    graph = Graph(ops=(op("a", sizes=(4,)), op("b", 0, sizes=(2,), workspace_bytes=100), op("c", 1)))
    assert simulate(graph, (0, 1, 2)).timeline_bytes == (4, 106, 3)


def test_values_of_one_op_die_separately() -> None:
    graph = Graph(ops=(op("two", sizes=(10, 100)), op("a", 0, sizes=(1,)), op("b", 1, 2, sizes=(1,))))
    assert simulate(graph, (0, 1, 2)).timeline_bytes == (110, 111, 102)


def test_a_value_nobody_reads_is_freed_after_its_op() -> None:
    graph = Graph(ops=(op("mask", sizes=(10, 3)), op("a", 0)))
    assert simulate(graph, (0, 1)).timeline_bytes == (13, 11)


def test_outputs_live_to_the_end_and_are_replaced_by_a_recompute() -> None:
    graph = Graph(ops=(op("out", sizes=(10, 1)), op("a", 1), op("b", 1)), outputs=(0,))
    assert simulate(graph, (0, 1, 0, 2)).timeline_bytes == (11, 12, 11, 12)


def test_a_recompute_drops_the_other_values_of_its_op_first() -> None:
    graph = Graph(ops=(op("two", sizes=(10, 100)), op("a", 0), op("b", 0), op("c", 1)))
    # value 1 is not carried over the recompute: the second run makes it anew
    assert simulate(graph, (0, 1, 0, 2, 3)).timeline_bytes == (110, 11, 110, 111, 101)


def test_replay_state_is_held_from_first_run_to_last_recompute() -> None:
    graph = Graph(ops=(op("drop", recompute_state_bytes=50), op("a", 0), op("b", 0), op("c", 2)))
    assert simulate(graph, (0, 1, 2, 3)).timeline_bytes == (1, 2, 2, 2)
    assert simulate(graph, (0, 1, 0, 2, 3)).timeline_bytes == (51, 52, 51, 2, 2)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ((0, 1), "never runs op 2"),
        ((1, 0, 2), "first time before op 0"),
        ((0, 1, 2, 9), "runs op 9"),
        ((0, 1, 2, -1), "runs op -1"),
        ((0, 1, 2, 2), "may not be recomputed"),
        ((0, 2, 1), "first time before op 1"),
    ],
)
def test_schedules_that_cannot_run(schedule: tuple[int, ...], says: str) -> None:
    graph = Graph(ops=(op("a"), op("b", 0), op("c", 1, recomputable=False)))
    with pytest.raises(InvalidPlan, match=says):
        simulate(graph, schedule)


def random_schedule(graph: Graph, generator: random.Random) -> list[int]:
    """First runs in order, with random recomputes strewn in."""
    schedule: list[int] = []
    for index in range(len(graph)):
        while index and generator.random() < 0.4:
            again = generator.randrange(index)
            if graph.ops[again].recomputable:
                schedule.append(again)
        schedule.append(index)
    return schedule


def random_graph(generator: random.Random) -> Graph:
    ops, values = [], 0
    for index in range(generator.randint(1, 9)):
        reads = generator.sample(range(values), min(values, generator.randint(0, 3)))
        sizes = tuple(generator.randint(0, 9) for _ in range(generator.randint(0, 3)))
        ops.append(
            op(
                f"op{index}",
                *reads,
                sizes=sizes,
                time_ns=generator.randint(0, 5),
                workspace_bytes=generator.choice([0, 0, generator.randint(1, 20)]),
                recomputable=generator.random() < 0.8,
                recompute_state_bytes=generator.choice([0, 0, 7]),
            )
        )
        values += len(sizes)
    outputs = tuple(value for value in range(values) if generator.random() < 0.2)
    return Graph(ops=tuple(ops), outputs=outputs, fixed_bytes=generator.randint(0, 5))


def test_agrees_with_the_naive_replay_on_random_schedules() -> None:
    generator = random.Random(7)
    for _ in range(2000):
        graph = random_graph(generator)
        schedule = random_schedule(graph, generator)
        replay = simulate(graph, schedule)
        assert list(replay.timeline_bytes) == naive_timeline(graph, schedule), (graph, schedule)
        assert replay.time_ns == sum(graph.ops[index].time_ns for index in schedule)
