"""The op graph as Inductor runs it: one op for each result that is stored in memory.

Everything else exists in registers, inside whatever kernel reads it, and is computed again in each of them, in the
backward too. So an op here is a stored result together with all that is computed on the way to it from other stored
results. That is what a plan can keep or run again; in which kernel Inductor puts it is Inductor's affair.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import torch
from torch import fx

from remat.torch.contract import JointGraph
from remat_solver.graph import Graph, Op

_INLINED = {
    "_unsafe_index",
    "clone",
    "constant_pad_nd",
    "convert_element_type",
    "embedding",
    "expand",
    "flip",
    "gather",
    "index",
    "inductor_lookup_seed",
    "inductor_random",
}
"""Beside pointwise ops, what Inductor can compute element by element inside its reader."""


@dataclass(frozen=True, kw_only=True)
class FusedGraph:
    """`graph` has one op per stored result; op i of it stands for the ops `members[i]` (ascending) of the joint graph.

    An op of the joint graph may be a member of several.
    """

    graph: Graph
    members: tuple[tuple[int, ...], ...]

    def unfused(self, schedule: Iterable[int]) -> tuple[int, ...]:
        """A schedule of stored results as one of the joint graph's ops."""
        return tuple(op for result in schedule for op in self.members[result])


def fuse(joint: JointGraph, seen: AbstractSet[str], stored: AbstractSet[str]) -> FusedGraph:
    """Contracts ops whose results are not stored into each of their readers.

    `seen` names the nodes that came into kernels, `stored` those whose results lie in memory. A node that was not seen
    (PyTorch's partitioner drops what is computed twice) counts as stored unless it works element by element.
    """
    inlined = {
        op
        for op, node in enumerate(joint.nodes)
        if node is not None
        and _can_be_inlined(joint.graph, op, node)
        and not (node.name in seen and _names_of(node) & stored)
    }
    within: list[frozenset[int]] = []
    for op, described in enumerate(joint.graph.ops):
        producers = {joint.graph.producer[value] for value in described.reads} & inlined
        within.append(frozenset({op}).union(*(within[producer] for producer in producers)))
    kept = [op for op in range(len(joint.graph)) if op not in inlined]
    return _contracted(joint.graph, [tuple(sorted(within[op])) for op in kept], kept)


def _can_be_inlined(graph: Graph, op: int, node: fx.Node) -> bool:
    """Whether the op may run any number of times, and Inductor computes it element by element or out of nothing."""
    if not isinstance(node.target, torch._ops.OpOverload) or not graph.ops[op].recomputable:
        return False
    if any(graph.is_output[value] for value in graph.written_by(op)):
        return False
    is_elementwise = torch.Tag.pointwise in node.target.tags or node.target._opname in _INLINED
    return is_elementwise or not node.all_input_nodes


def _names_of(node: fx.Node) -> set[str]:
    """The node's name and those under which its results are taken apart."""
    return {node.name, *(user.name for user in node.users if user.target is operator.getitem)}


def _contracted(graph: Graph, members: list[tuple[int, ...]], kept: list[int]) -> FusedGraph:
    numbers: dict[int, int] = {}
    ops: list[Op] = []
    for op, group in zip(kept, members, strict=True):
        inside = {value for member in group if member != op for value in graph.written_by(member)}
        reads = {value for member in group for value in graph.ops[member].reads} - inside
        described = graph.ops[op]
        name = described.name if len(group) == 1 else f"{described.name}+{len(group) - 1}"
        ops.append(replace(described, name=name, reads=tuple(sorted(numbers[value] for value in reads)), signature=""))
        written = graph.written_by(op)
        numbers.update(zip(written, range(len(numbers), len(numbers) + len(written)), strict=True))
    outputs = tuple(sorted(numbers[value] for value in graph.outputs))
    return FusedGraph(graph=replace(graph, ops=tuple(ops), outputs=outputs), members=tuple(members))
