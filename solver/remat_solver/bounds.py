"""Bounds that need no MIP."""

from __future__ import annotations

from dataclasses import dataclass

from remat_solver.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Resident:
    """What is in memory whatever is recomputed: `fixed_bytes`, outputs, and values of ops that may not be recomputed.

    Stage t is the time from the first run of op t - 1 to that of op t. `bytes_at[t]` are these bytes in stage t.
    Value v is among them from the stage after its op's, `since[v]`, to `until[v]`: an output to the end, another up to
    its last reader. `until[v]` is -1 for a value that may be recomputed.
    """

    bytes_at: tuple[int, ...]
    since: tuple[int, ...]
    until: tuple[int, ...]

    def holds(self, value: int, stage: int) -> bool:
        """Whether the value is among them in that stage."""
        return self.since[value] <= stage <= self.until[value]


def find_resident(graph: Graph) -> Resident:
    """What stays in memory at each stage of any schedule whose first runs keep the graph's order."""
    since = tuple(op + 1 for op in graph.producer)
    until = [-1] * len(graph.sizes)
    change = [0] * (len(graph) + 2)
    for value, op in enumerate(graph.producer):
        if graph.is_output[value]:
            until[value] = len(graph)
        elif not graph.ops[op].recomputable:
            until[value] = max(graph.readers[value], default=-1)
        if until[value] >= since[value]:
            change[since[value]] += graph.sizes[value]
            change[until[value] + 1] -= graph.sizes[value]
    bytes_at, in_use = [], graph.fixed_bytes
    for stage in range(len(graph) + 1):
        in_use += change[stage]
        bytes_at.append(in_use)
    return Resident(bytes_at=tuple(bytes_at), since=since, until=tuple(until))


def working_sets(graph: Graph) -> list[int]:
    """For each op the bytes without which it can't run for the first time, in O(edges).

    Take that run in any schedule whose first runs keep the graph's order. In memory then are, for certain, what the op
    reads and writes, its workspace, every output written so far, and every value of an earlier op that may not be
    recomputed and that some later op still reads. No assumption is made on recomputations.
    """
    resident = find_resident(graph)
    found = []
    for v, op in enumerate(graph.ops):
        own = {value for value in (*op.reads, *graph.written_by(v)) if not resident.holds(value, v)}
        found.append(resident.bytes_at[v] + op.workspace_bytes + sum(graph.sizes[value] for value in own))
    return found


def working_set_bound(graph: Graph) -> int:
    """Bytes below which no schedule of `graph` fits (proof scope "order"): every op needs its working set once.

    `fixed_bytes` are included. On most graphs it equals the least feasible budget.
    """
    return max(working_sets(graph), default=graph.fixed_bytes)


def tightest_first(graph: Graph) -> list[int]:
    """The ops, those with the largest working sets first."""
    needed = working_sets(graph)
    return sorted(range(len(graph)), key=lambda op: (-needed[op], op))
