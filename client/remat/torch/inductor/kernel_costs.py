"""What a fused kernel costs: the arithmetic of its ops, and memory traffic at its edges only.

An op alone reads its inputs from memory and writes its result there, which is most of what a pointwise op does. Inside
a kernel that traffic is gone. So an op's measured time is parted: what its bytes take at the speed that the fastest
tenth of the ops reached, and the rest, which it takes wherever it runs.
"""

from __future__ import annotations

from dataclasses import replace

from remat.torch.inductor.fusion import FusedGraph
from remat_solver.graph import Graph, Op

WORTH_TIMING_BYTES = 2**18
"""An op that moves less says nothing about the speed of memory."""


def with_kernel_times(fused: FusedGraph, measured: Graph) -> FusedGraph:
    """The fused graph with the time and workspace of each kernel; `measured` has those of the joint graph's ops."""
    moved = [_moved_bytes(measured, op) for op in measured.ops]
    speed = _bytes_per_ns(measured, moved)
    ops = []
    for kernel, members in zip(fused.graph.ops, fused.members, strict=True):
        workspace = max(measured.ops[op].workspace_bytes for op in members)
        time_ns = alone = sum(measured.ops[op].time_ns for op in members)
        if len(members) > 1:
            arithmetic = sum(max(0.0, measured.ops[op].time_ns - moved[op] / speed) for op in members)
            time_ns = min(alone, round(arithmetic + _moved_bytes(fused.graph, kernel) / speed))
        ops.append(replace(kernel, time_ns=time_ns, workspace_bytes=workspace))
    graph = replace(fused.graph, ops=tuple(ops), device=measured.device, estimated=measured.estimated)
    return replace(fused, graph=graph)


def _moved_bytes(graph: Graph, op: Op) -> int:
    """What the op reads and writes; weights and the batch, which a plan doesn't move, are left out."""
    return sum(value.size_bytes for value in op.writes) + sum(graph.sizes[value] for value in op.reads)


def _bytes_per_ns(graph: Graph, moved: list[int]) -> float:
    """The speed of memory, as far as the ops show it."""
    timed = [(size, op.time_ns) for size, op in zip(moved, graph.ops, strict=True) if op.time_ns and size]
    large = [(size, time_ns) for size, time_ns in timed if size >= WORTH_TIMING_BYTES]
    speeds = sorted(size / time_ns for size, time_ns in large or timed)
    return speeds[len(speeds) * 9 // 10] if speeds else 1.0
