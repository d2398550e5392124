"""Bounds that need no MIP."""

from __future__ import annotations

from remat_solver.graph import Graph


def working_set_bound(graph: Graph) -> int:
    """Bytes below which no schedule of `graph` fits, in O(edges): every op needs its working set once.

    Take the first run of op v in any schedule whose first runs keep the graph's order. In memory then
    are, for certain, what v reads and writes, its workspace, every output written so far, and every
    value of an earlier op that may not be recomputed and that some later op still reads. The bound is
    the largest such union, `fixed_bytes` included. It makes no assumption on recomputations, so that
    its proof scope is "order". On most graphs it equals the least feasible budget.
    """
    resident = graph.fixed_bytes
    last_reader = [max(readers, default=-1) for readers in graph.readers]
    leaves_after: list[int] = [0] * len(graph)
    bound = graph.fixed_bytes
    stays = [False] * len(graph.sizes)
    for v, op in enumerate(graph.ops):
        working_set = resident + op.workspace_bytes
        working_set += sum(graph.sizes[value] for value in op.reads if not stays[value])
        working_set += sum(value.size_bytes for value in op.writes)
        bound = max(bound, working_set)
        for value in graph.written_by(v):
            if graph.is_output[value]:
                stays[value] = True
                resident += graph.sizes[value]
            elif not op.recomputable and last_reader[value] > v:
                stays[value] = True
                resident += graph.sizes[value]
                leaves_after[last_reader[value]] += graph.sizes[value]
        resident -= leaves_after[v]
    return bound
