"""The exact optimum over every schedule whose first runs keep the order: a shortest-path search without formulation.

Wider than Checkmate's class: an op may run again at any time and any number of times. A state is the
next first run, what is in memory and which replay states are held; dropping anything is free, running an op costs
its time. For graphs of up to about 7 ops.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from remat_solver.graph import Graph


@dataclass(frozen=True, order=True)
class _State:
    """`held`: ops whose replay state is in memory. An op that has run without taking it may not run again."""

    stage: int
    live: tuple[int, ...]
    held: tuple[int, ...]


def free_optimum(graph: Graph, budget_bytes: int) -> int | None:
    """The least time within the budget, or None if nothing fits."""
    start = _State(0, (), ())
    best = {start: 0}
    queue = [(0, start)]
    while queue:
        time_ns, state = heapq.heappop(queue)
        if time_ns > best[state]:
            continue
        if state.stage == len(graph):
            return time_ns
        for cost, following in _moves(graph, budget_bytes, state):
            if time_ns + cost < best.get(following, time_ns + cost + 1):
                best[following] = time_ns + cost
                heapq.heappush(queue, (time_ns + cost, following))
    return None


def _moves(graph: Graph, budget_bytes: int, state: _State) -> Iterator[tuple[int, _State]]:
    for value in state.live:
        if not graph.is_output[value]:
            yield 0, _State(state.stage, tuple(v for v in state.live if v != value), state.held)
    for op in state.held:
        yield 0, _State(state.stage, state.live, tuple(i for i in state.held if i != op))
    for op in range(state.stage + 1):
        is_first = op == state.stage
        needs_state = graph.ops[op].recompute_state_bytes > 0
        if not is_first and (not graph.ops[op].recomputable or (needs_state and op not in state.held)):
            continue
        if any(value not in state.live for value in graph.ops[op].reads):
            continue
        live = tuple(sorted({*state.live, *graph.written_by(op)}))
        choices = [state.held]
        if is_first and needs_state:
            choices.append(tuple(sorted((*state.held, op))))
        for held in choices:
            if _in_use(graph, op, live, held) <= budget_bytes:
                yield graph.ops[op].time_ns, _State(state.stage + is_first, live, held)


def _in_use(graph: Graph, op: int, live: tuple[int, ...], held: tuple[int, ...]) -> int:
    states = sum(graph.ops[i].recompute_state_bytes for i in held)
    values = sum(graph.sizes[value] for value in live)
    return graph.fixed_bytes + values + states + graph.ops[op].workspace_bytes
