"""Which values can matter when: the static facts that let a formulation leave columns out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_solver.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Lifetimes:
    """Facts of a graph, by op or by value number.

    A value is *lasting* if it is an output or has no bytes: once computed it can stay to the end at
    no cost, so that no formulation decides about it. The others are *volatile*.

    `reads[i]`, `writes[i]`: the volatile values that op i reads and writes. `may_rerun[i]`: whether
    recomputing i can ever serve anything. `horizon[i]`: the last stage in which op i may have to run,
    its own if it can't run again. `last_use[o]`: the last stage in which volatile value o can be
    read, in its own right or to recompute something; -1 if nothing reads it.
    """

    graph: Graph
    is_lasting: tuple[bool, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    may_rerun: tuple[bool, ...]
    horizon: tuple[int, ...]
    last_use: tuple[int, ...]


def find_lifetimes(graph: Graph) -> Lifetimes:
    """The facts of `graph`, in O(edges)."""
    lasting = tuple(size == 0 or is_output for size, is_output in zip(graph.sizes, graph.is_output, strict=True))
    writes = tuple(tuple(v for v in graph.written_by(i) if not lasting[v]) for i in range(len(graph)))
    horizon = list(range(len(graph)))
    may_rerun = [False] * len(graph)
    last_use = [-1] * len(graph.sizes)
    for i in range(len(graph) - 1, -1, -1):
        for value in writes[i]:
            last_use[value] = max((horizon[reader] for reader in graph.readers[value]), default=-1)
        latest = max((last_use[value] for value in writes[i]), default=-1)
        if graph.ops[i].recomputable and latest > i:
            may_rerun[i] = True
            horizon[i] = latest
    return Lifetimes(
        graph=graph,
        is_lasting=lasting,
        reads=tuple(tuple(v for v in op.reads if not lasting[v]) for op in graph.ops),
        writes=writes,
        may_rerun=tuple(may_rerun),
        horizon=tuple(horizon),
        last_use=tuple(last_use),
    )


def only_large(lifetimes: Lifetimes, least_bytes: float) -> Lifetimes:
    """The facts if values of fewer bytes than that could stay in memory for nothing, as lasting ones do.

    That is a relaxation: what has no place even so has none. There is much less to decide, because most of a network's
    values are small beside the few that fill its memory.
    """
    lasts = tuple(
        is_lasting or size < least_bytes
        for is_lasting, size in zip(lifetimes.is_lasting, lifetimes.graph.sizes, strict=True)
    )
    return replace(
        lifetimes,
        is_lasting=lasts,
        reads=tuple(tuple(v for v in values if not lasts[v]) for values in lifetimes.reads),
        writes=tuple(tuple(v for v in values if not lasts[v]) for values in lifetimes.writes),
    )
