"""Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), carried over to any graph.

The forward pass keeps the values of a few ops, the backward pass recomputes the rest, each op at most
once, as soon as it needs it. `chen_sqrt` keeps every k-th candidate, k the root of their number (section
3); `chen_greedy` keeps a candidate whenever the values since the last one exceed a threshold (Algorithm
3), and tries a range of thresholds. Candidates are the articulation points of the forward graph, where
the paper's chains can be cut, or, as in Checkmate's "linearized" baseline, all forward ops. The peak is
the simulator's business: what does not fit is no answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remat_solver.graph import Graph
from remat_solver.strategies.base import Found, Task
from remat_solver.strategies.candidates import Candidates

_THRESHOLDS = 24


def chen_sqrt(task: Task) -> Found:
    """Keeps every k-th candidate. Raises `NoPlanInTime`, and `StrategyNotApplicable` on graphs without phases."""
    candidates = Candidates(task, "chen_sqrt")
    forward = _forward_ops(task, candidates)
    for cuts in _cut_choices(task.graph, forward):
        segment = max(1, round(len(cuts) ** 0.5))
        _offer(candidates, forward, cuts[segment - 1 :: segment])
    return candidates.best()


def chen_greedy(task: Task) -> Found:
    """Keeps candidates by accumulated size, over a range of sizes. Raises as `chen_sqrt` does."""
    candidates = Candidates(task, "chen_greedy")
    forward = _forward_ops(task, candidates)
    tried: set[tuple[int, ...]] = set()
    for cuts in _cut_choices(task.graph, forward):
        for threshold_bytes in _thresholds(task.graph, forward):
            chosen = tuple(_cut_by_size(task.graph, forward, cuts, threshold_bytes))
            if chosen not in tried and not task.is_over():
                tried.add(chosen)
                _offer(candidates, forward, chosen)
    return candidates.best()


def _forward_ops(task: Task, candidates: Candidates) -> int:
    """How many ops stand before the backward pass."""
    for index, op in enumerate(task.graph.ops):
        if op.phase == "backward":
            return index
    raise candidates.not_applicable("it needs to know the backward pass, and no op of the graph has that phase")


def _offer(candidates: Candidates, forward: int, chosen: Sequence[int]) -> None:
    absent = candidates.task.absent_at_boundary
    kept = frozenset(v for op in chosen if op not in absent for v in candidates.lifetimes.writes[op])
    candidates.offer_retention({forward: kept})


def _cut_choices(graph: Graph, forward: int) -> Iterator[list[int]]:
    """The articulation points, if there are any, and then all forward ops."""
    points = articulation_ops(graph, forward)
    if points:
        yield points
    yield list(range(forward))


def _thresholds(graph: Graph, forward: int) -> list[int]:
    """From the largest op's values to those of the whole forward pass, in equal ratios."""
    written = [sum(value.size_bytes for value in op.writes) for op in graph.ops[:forward]]
    low, high = max(1, max(written, default=1)), max(1, sum(written))
    return [round(low * (high / low) ** (step / (_THRESHOLDS - 1))) for step in range(_THRESHOLDS)]


def _cut_by_size(graph: Graph, forward: int, cuts: Sequence[int], threshold_bytes: int) -> Iterator[int]:
    allowed = set(cuts)
    gathered = 0
    for op in range(forward):
        gathered += sum(value.size_bytes for value in graph.ops[op].writes)
        if op in allowed and gathered > threshold_bytes:
            yield op
            gathered = 0


def articulation_ops(graph: Graph, count: int) -> list[int]:
    """The ops among the first `count` without which their undirected graph falls apart (Hopcroft and Tarjan, 1973)."""
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for reader in range(count):
        for value in graph.ops[reader].reads:
            neighbours[reader].add(graph.producer[value])
            neighbours[graph.producer[value]].add(reader)
    depth = [-1] * count
    points: set[int] = set()
    for root in range(count):
        if depth[root] < 0:
            points |= _articulations_from(root, neighbours, depth)
    return sorted(points)


def _articulations_from(root: int, neighbours: Sequence[set[int]], depth: list[int]) -> set[int]:
    """Depth-first search without recursion; low[v] is the least depth that v's subtree reaches by one back edge."""
    low = {root: 0}
    depth[root] = 0
    points: set[int] = set()
    root_children = 0
    path = [(root, iter(sorted(neighbours[root])))]
    while path:
        node, rest = path[-1]
        child = next(rest, None)
        if child is None:
            path.pop()
            if path:
                parent = path[-1][0]
                low[parent] = min(low[parent], low[node])
                if parent != root and low[node] >= depth[parent]:
                    points.add(parent)
        elif depth[child] < 0:
            depth[child] = low[child] = depth[node] + 1
            root_children += node == root
            path.append((child, iter(sorted(neighbours[child]))))
        elif len(path) < 2 or child != path[-2][0]:
            low[node] = min(low[node], depth[child])
    if root_children > 1:
        points.add(root)
    return points
