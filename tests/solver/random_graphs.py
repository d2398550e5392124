"""Seeded random graphs and budgets for every test of the solver that needs many."""

from __future__ import annotations

import random

from remat_solver.graph import Graph, Op, Value
from remat_solver.simulate import simulate, store_all_schedule


def random_graph(seed: int, *, fewest_ops: int = 2, most_ops: int = 7) -> Graph:
    """A graph with what real ones have, in small: the same seed gives the same graph everywhere.

    Several values per op or none, values that nobody reads, workspaces, outputs, values without bytes,
    ops without cost, ops that may not be recomputed, replay state. Sizes and times are small integers,
    so that ties and exact fits are common.
    """
    rng = random.Random(seed)
    count = max(rng.randint(fewest_ops, most_ops) for _ in range(2))
    style = rng.choice(["plain", "plain", "values", "everything", "everything"])
    window = rng.choice([2, 3, 5, count])
    mirror = count - 1 if rng.random() < 0.6 else None
    ops: list[Op] = []
    producers: list[int] = []
    for index in range(count):
        reads = _random_reads(rng, index, producers, window, mirror)
        op = _random_op(rng, index, reads, style)
        producers.extend([index] * len(op.writes))
        ops.append(op)
    outputs = _random_outputs(rng, producers, style)
    return Graph(ops=tuple(ops), outputs=outputs, fixed_bytes=rng.choice([0, 0, 3]))


def random_budget(graph: Graph, seed: int) -> int:
    """A budget that matters: between what the largest single op needs and the store-all peak."""
    rng = random.Random(seed * 7919 + 1)
    peak = simulate(graph, store_all_schedule(graph)).peak_bytes
    lowest = graph.fixed_bytes + max(
        op.workspace_bytes + sum(value.size_bytes for value in op.writes) + sum(graph.sizes[v] for v in op.reads)
        for op in graph.ops
    )
    return max(1, rng.choice([rng.randint(min(lowest, peak - 1), peak - 1), peak - rng.randint(1, 4), peak, lowest]))


def _random_reads(
    rng: random.Random, index: int, producers: list[int], window: int, mirror: int | None
) -> tuple[int, ...]:
    """Mostly recent values; in the second half of a mirrored graph the matching early ones too, as backward ops do."""
    near = [value for value, producer in enumerate(producers) if producer >= index - window]
    pool = near if rng.random() < 0.8 else list(range(len(producers)))
    reads = rng.sample(pool, min(len(pool), rng.choice([1, 1, 2, 2, 3])))
    if mirror is not None and 2 * index > mirror:
        partners = [value for value, producer in enumerate(producers) if producer == mirror - index]
        reads = [*reads[:1], *partners]
    return tuple(dict.fromkeys(reads))


def _random_op(rng: random.Random, index: int, reads: tuple[int, ...], style: str) -> Op:
    is_rich = style == "everything"
    values = 1 if style == "plain" else rng.choice([0, 1, 1, 1, 2, 2, 3] if is_rich else [1, 1, 2, 2])
    sizes = [0, 1, 2, 3, 5, 8] if is_rich else list(range(1, 10))
    return Op(
        name=f"op{index}",
        time_ns=rng.choice([0, 1, 1, 2, 3, 5, 8]) if is_rich else rng.randint(1, 9),
        reads=reads,
        writes=tuple(Value(size_bytes=rng.choice(sizes)) for _ in range(values)),
        workspace_bytes=rng.choice([0, 0, 0, 1, 3, 6]) if style != "plain" else 0,
        recomputable=not is_rich or rng.random() < 0.85,
        recompute_state_bytes=rng.choice([0, 0, 0, 1, 2]) if is_rich else 0,
    )


def _random_outputs(rng: random.Random, producers: list[int], style: str) -> tuple[int, ...]:
    if not producers:
        return ()
    last = len(producers) - 1
    if style != "everything":
        return (last,)
    chance = rng.choice([0.0, 0.1, 0.3])
    chosen = {value for value in range(len(producers)) if rng.random() < chance}
    return tuple(sorted(chosen | ({last} if rng.random() < 0.8 else set())))
