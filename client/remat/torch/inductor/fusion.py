"""Which ops Inductor fuses into one kernel, and the op graph in which each such kernel is a single op.

What is read and written inside a kernel never lies in memory, and a kernel is recomputed whole. Planning on kernels
instead of ops has both right, and a third as many ops.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import fx

from remat.torch.contract import JointGraph
from remat_solver.graph import Graph, Op, Value


@dataclass(frozen=True, kw_only=True)
class FusedGraph:
    """`graph` has one op per kernel; op i of it stands for the ops `members[i]` (ascending) of the joint graph."""

    graph: Graph
    members: tuple[tuple[int, ...], ...]

    def unfused(self, schedule: Iterable[int]) -> tuple[int, ...]:
        """A schedule of kernels as one of the joint graph's ops."""
        return tuple(op for kernel in schedule for op in self.members[kernel])


def fuse(joint: JointGraph, kernels: Sequence[frozenset[str]], stored: AbstractSet[str]) -> FusedGraph:
    """Contracts the ops of each kernel, which is given by the names of its nodes, as far as a plan may.

    An op that runs just once stays alone, so that the rest of its kernel can be recomputed. So does an op that belongs
    to another phase than its kernel's first op. What no kernel claims (PyTorch's partitioner drops what is computed
    twice) joins the one kernel that reads it, if it works element by element. Kernels that would wait for each other
    are taken apart again.

    A result that no kernel stored (`stored` names those that were) takes no memory, unless a plan may keep it from
    forward to backward.
    """
    numbers = {node.name: op for op, node in enumerate(joint.nodes) if node is not None}
    free = {op for op in numbers.values() if joint.graph.ops[op].recomputable}
    groups: list[list[int]] = []
    for names in kernels:
        members = sorted({numbers[name] for name in names if name in numbers} & free)
        members = [op for op in members if joint.graph.ops[op].phase == joint.graph.ops[members[0]].phase]
        free.difference_update(members)
        if members:
            groups.append(members)
    seen = frozenset().union(*kernels)
    unclaimed = {op for name, op in numbers.items() if name not in seen and _is_elementwise(joint.nodes[op])}
    _join_readers(joint.graph, groups, sorted(unclaimed & free, reverse=True))
    grouped = {op for members in groups for op in members}
    alone = [(op,) for op in range(len(joint.graph)) if op not in grouped]
    in_registers = {op for name, op in numbers.items() if name in seen and name not in stored} | unclaimed
    graph = _without_registers(joint.graph, in_registers)
    return _Contraction(graph, [*(tuple(sorted(members)) for members in groups), *alone]).contract()


def _is_elementwise(node: fx.Node | None) -> bool:
    """Whether Inductor computes the node's result inside whatever reads it: element by element, or out of nothing."""
    if node is None or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or not node.all_input_nodes


def _join_readers(graph: Graph, groups: list[list[int]], ops: list[int]) -> None:
    """Puts each op, readers first, into the group that holds all its readers, if there is one in its phase."""
    home = {op: number for number, members in enumerate(groups) for op in members}
    for op in ops:
        readers = {reader for value in graph.written_by(op) for reader in graph.readers[value]}
        homes = {home.get(reader, -1) for reader in readers}
        if len(homes) != 1 or -1 in homes or any(graph.ops[reader].phase != graph.ops[op].phase for reader in readers):
            continue
        (number,) = homes
        groups[number].append(op)
        home[op] = number


def _without_registers(graph: Graph, ops: set[int]) -> Graph:
    """The graph in which results of `ops` have no size if they are read in one phase only."""

    def sized(op: int, number: int, value: Value) -> Value:
        phases = {graph.ops[op].phase, *(graph.ops[reader].phase for reader in graph.readers[number])}
        is_local = op in ops and len(phases) == 1 and not graph.is_output[number]
        return replace(value, size_bytes=0) if is_local else value

    return replace(
        graph,
        ops=tuple(
            replace(described, writes=tuple(sized(op, n, graph.values[n]) for n in graph.written_by(op)))
            for op, described in enumerate(graph.ops)
        ),
    )


class _Contraction:
    """Orders groups of ops so that each comes after what it reads, and writes the graph of them."""

    def __init__(self, graph: Graph, groups: list[tuple[int, ...]]) -> None:
        self.graph = graph
        self.groups = groups

    def contract(self) -> FusedGraph:
        while (order := self._ordered()) is None:
            pass
        ops: list[Op] = []
        numbers: dict[int, int] = {}
        for members in order:
            written = [value for op in members for value in self.graph.written_by(op) if self._is_kept(value, members)]
            reads = {value for op in members for value in self.graph.ops[op].reads}
            reads -= {value for op in members for value in self.graph.written_by(op)}
            values = tuple(self.graph.values[value] for value in written)
            described = [self.graph.ops[op] for op in members]
            ops.append(_joined(described, sorted(numbers[value] for value in reads), values))
            numbers.update(zip(written, range(len(numbers), len(numbers) + len(written)), strict=True))
        outputs = tuple(sorted(numbers[value] for value in self.graph.outputs))
        graph = Graph(
            ops=tuple(ops),
            outputs=outputs,
            fixed_bytes=self.graph.fixed_bytes,
            name=self.graph.name,
            device=self.graph.device,
            estimated=self.graph.estimated,
        )
        return FusedGraph(graph=graph, members=tuple(order))

    def _is_kept(self, value: int, members: tuple[int, ...]) -> bool:
        """Whether the value leaves its kernel (or nobody reads it, as a gradient's twin)."""
        readers = self.graph.readers[value]
        return self.graph.is_output[value] or not readers or any(reader not in members for reader in readers)

    @cached_property
    def _once(self) -> list[int]:
        """Ops that run once keep their order: one may read an input that another changes in place."""
        return [op for op, described in enumerate(self.graph.ops) if not described.recomputable]

    def _ordered(self) -> list[tuple[int, ...]] | None:
        """The groups in an order in which they can run; None once one of them had to be taken apart."""
        home = {op: number for number, members in enumerate(self.groups) for op in members}
        needs: list[set[int]] = [set() for _ in self.groups]
        for number, members in enumerate(self.groups):
            for op in members:
                needs[number].update(home[self.graph.producer[value]] for value in self.graph.ops[op].reads)
            needs[number].discard(number)
        for before, after in zip(self._once, self._once[1:], strict=False):
            needs[home[after]].add(home[before])
        users: list[list[int]] = [[] for _ in self.groups]
        for number, needed in enumerate(needs):
            for other in needed:
                users[other].append(number)
        waiting = [len(needed) for needed in needs]
        ready = [(members[-1], number) for number, members in enumerate(self.groups) if not waiting[number]]
        heapq.heapify(ready)
        order: list[tuple[int, ...]] = []
        while ready:
            _, number = heapq.heappop(ready)
            order.append(self.groups[number])
            for user in users[number]:
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, (self.groups[user][-1], user))
        if len(order) == len(self.groups):
            return order
        stuck = min(number for number, count in enumerate(waiting) if count and len(self.groups[number]) > 1)
        self.groups = [
            part for number, members in enumerate(self.groups)
            for part in ([(op,) for op in members] if number == stuck else [members])
        ]  # fmt: skip
        return None


def _joined(ops: list[Op], reads: list[int], writes: tuple[Value, ...]) -> Op:
    return Op(
        name=ops[0].name if len(ops) == 1 else f"{ops[-1].name}+{len(ops) - 1}",
        time_ns=sum(op.time_ns for op in ops),
        reads=tuple(reads),
        writes=writes,
        workspace_bytes=max(op.workspace_bytes for op in ops),
        recomputable=all(op.recomputable for op in ops),
        recompute_state_bytes=sum(op.recompute_state_bytes for op in ops),
        phase=ops[0].phase,
    )
