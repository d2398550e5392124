"""Graphs shaped like training steps, uneven enough that the engine has something to prove, and one beyond proof."""

from __future__ import annotations

import random
from typing import Any

from remat_solver.graph import Graph, Op, Value

QUICK_OPS = 30
"""`uneven_chain(QUICK_OPS)` at 60% of its peak is solved in a fraction of a second."""
ENDLESS: dict[str, Any] = {"budget_fraction": 0.7, "gap": 0.0, "time_limit_s": 3600.0}
"""This asked of a `tangle` gives a plan at once and runs until it is stopped: after a minute the bound is still tens of
per cent away, so no machine that tests run on proves anything within their time. Stop it at the end of a test, or the
worker stays taken."""
TANGLE_OPS = 250


def uneven_chain(length: int, *, seed: int = 0, name: str = "chain") -> Graph:
    """A forward chain of ops of random cost and size, and its backward."""
    rng = random.Random(seed)
    ops = [_op(rng, f"f{i}", (i - 1,) if i else (), "forward") for i in range(length)]
    for step, i in enumerate(reversed(range(length))):
        gradient = {length + step - 1, i} if step else {i}
        ops.append(_op(rng, f"b{i}", tuple(sorted(gradient)), "backward"))
    return Graph(ops=tuple(ops), outputs=(2 * length - 1,), fixed_bytes=1000, name=name)


def tangle(seed: int = 0) -> Graph:
    """Ops that read what was computed anywhere in the third of the graph before them: hopeless to plan for exactly."""
    rng = random.Random(seed)
    ops = []
    for index in range(TANGLE_OPS):
        before = range(max(0, index - TANGLE_OPS // 3), index)
        reads = tuple(sorted(rng.sample(before, min(len(before), rng.randint(1, 3)))))
        write = Value(size_bytes=rng.randint(1, 999_983))
        ops.append(Op(name=f"t{index}", time_ns=rng.randint(1000, 999_999), reads=reads, writes=(write,)))
    return Graph(ops=tuple(ops), outputs=(TANGLE_OPS - 1,), fixed_bytes=1000, name="tangle")


def _op(rng: random.Random, name: str, reads: tuple[int, ...], phase: str) -> Op:
    size_bytes = rng.randint(1, 100) * 4096
    time_ns = rng.randint(100, 999) * 1000
    return Op(name=name, time_ns=time_ns, reads=reads, writes=(Value(size_bytes=size_bytes),), phase=phase)  # type: ignore[arg-type]
