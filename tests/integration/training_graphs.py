"""Graphs shaped like training steps, uneven enough that the engine has something to prove."""

from __future__ import annotations

import random

from remat_solver.graph import Graph, Op, Value

QUICK_OPS = 30
"""`uneven_chain(QUICK_OPS)` at 60% of its peak is solved in a fraction of a second."""
SLOW_OPS = 60
"""`uneven_chain(SLOW_OPS)` with no gap at 30%: a plan at once, its proof not within any test's patience."""


def uneven_chain(length: int, *, seed: int = 0, name: str = "chain") -> Graph:
    """A forward chain of ops of random cost and size, and its backward."""
    rng = random.Random(seed)
    ops = [_op(rng, f"f{i}", (i - 1,) if i else (), "forward") for i in range(length)]
    for step, i in enumerate(reversed(range(length))):
        gradient = {length + step - 1, i} if step else {i}
        ops.append(_op(rng, f"b{i}", tuple(sorted(gradient)), "backward"))
    return Graph(ops=tuple(ops), outputs=(2 * length - 1,), fixed_bytes=1000, name=name)


def _op(rng: random.Random, name: str, reads: tuple[int, ...], phase: str) -> Op:
    size_bytes = rng.randint(1, 100) * 4096
    time_ns = rng.randint(100, 999) * 1000
    return Op(name=name, time_ns=time_ns, reads=reads, writes=(Value(size_bytes=size_bytes),), phase=phase)  # type: ignore[arg-type]
