"""Kernels as ops: what they read, write and cost, and in which order they can run. No compiler is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from remat.torch.both_ways import Outcome
from remat.torch.contract import JointGraph, contract
from remat.torch.inductor.difference import largest_difference, tolerance
from remat.torch.inductor.fusion import FusedGraph, fuse
from remat.torch.inductor.kernel_costs import with_kernel_times
from remat.torch.inductor.products import NEAR, keep_products_in_place
from remat_solver.graph import Graph, Op, Value
from remat_solver.simulate import simulate, store_all_schedule


def joint_of(*ops: Op, outputs: tuple[int, ...]) -> JointGraph:
    """A joint graph as far as fusing looks at it: ops, and a node for each, of the same name."""
    nodes = fx.Graph()
    return JointGraph(
        graph=Graph(ops=ops, outputs=outputs),
        module=fx.GraphModule({}, nodes),
        nodes=tuple(nodes.create_node("call_function", torch.neg, name=op.name) for op in ops),
        boundary=0,
        values={},
        inputs=(),
        forward_outputs=(),
        backward_outputs=(),
        random_devices={},
        unchecked=frozenset(),
        loss_is_outside=False,
        own_regions=0,
        device=torch.device("cpu"),
        eager_kernels=False,
    )


def op(name: str, *reads: int, size_bytes: int = 8, **fields: Any) -> Op:
    """An op with one result."""
    settings = {"time_ns": 1, "phase": "forward", **fields}
    return Op(name=name, reads=reads, writes=(Value(size_bytes=size_bytes),), **settings)


def names(fused: FusedGraph, joint: JointGraph) -> list[list[str]]:
    return [[joint.graph.ops[member].name for member in members] for members in fused.members]


def test_a_kernel_reads_and_writes_only_what_crosses_its_edge() -> None:
    joint = joint_of(op("load"), op("scale", 0), op("shift", 1), op("total", 1, 2), outputs=(3,))
    fused = fuse(joint, [frozenset({"scale", "shift"})], {"load", "scale", "shift", "total"})
    assert names(fused, joint) == [["load"], ["scale", "shift"], ["total"]]
    kernel = fused.graph.ops[1]
    assert kernel.reads == (0,)
    assert len(kernel.writes) == 2
    whole = fuse(joint, [frozenset({"scale", "shift", "total"})], {"load", "scale", "shift", "total"})
    assert len(whole.graph.ops[1].writes) == 1
    assert fused.unfused((0, 1, 2)) == (0, 1, 2, 3)


def test_what_is_never_stored_has_no_size_unless_the_backward_reads_it() -> None:
    forward = [op("load"), op("mask", 0), op("use", 1), op("keep", 2)]
    joint = joint_of(*forward, op("gradient", 3, phase="backward"), outputs=(4,))
    fused = fuse(joint, [frozenset({"mask"}), frozenset({"use"})], {"use"})
    assert fused.graph.sizes == (8, 0, 8, 8, 8)
    crossing = joint_of(*forward, op("gradient", 1, 3, phase="backward"), outputs=(4,))
    assert fuse(crossing, [frozenset({"mask"}), frozenset({"use"})], {"use"}).graph.sizes == (8, 8, 8, 8, 8)


def test_kernels_that_wait_for_each_other_are_taken_apart() -> None:
    joint = joint_of(op("a"), op("b", 0), op("c", 1), op("d", 2), outputs=(3,))
    fused = fuse(joint, [frozenset({"a", "c"}), frozenset({"b", "d"})], {"a", "b", "c", "d"})
    assert sorted(member for members in fused.members for member in members) == [0, 1, 2, 3]
    simulate(fused.graph, store_all_schedule(fused.graph))  # raises if something is read before it is written


def test_what_runs_once_stays_alone_and_in_order() -> None:
    """`write` changes an input that `read` reads: nothing but their order says so."""
    joint = joint_of(
        op("read", recomputable=False), op("late", 0), op("write", recomputable=False), op("end", 1, 2), outputs=(3,)
    )
    fused = fuse(joint, [frozenset({"read", "end"}), frozenset({"late", "write"})], set())
    order = [name for kernel in names(fused, joint) for name in kernel]
    assert order.index("read") < order.index("write")
    assert ["read"] in names(fused, joint)


def test_a_kernel_costs_its_arithmetic_and_the_traffic_at_its_edge() -> None:
    """Four ops that only move bytes, three of them in one kernel: what passes inside it costs nothing."""
    size_bytes = 2**20
    chain = [op(f"move{i}", *([i - 1] if i else []), size_bytes=size_bytes, time_ns=2 * size_bytes) for i in range(4)]
    joint = joint_of(*chain, op("end", 3, size_bytes=0, time_ns=0), outputs=(4,))
    fused = with_kernel_times(fuse(joint, [frozenset({"move1", "move2", "move3"})], {"move3"}), joint.graph)
    times = [kernel.time_ns for kernel in fused.graph.ops]
    assert times == pytest.approx([2 * size_bytes, 2 * size_bytes, 0])


def outcome(**gradients: Tensor) -> Outcome:
    return Outcome(outputs={"output 0": torch.tensor(1.0)}, gradients=gradients)


def test_rounding_passes_and_noise_drawn_anew_does_not() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(64, 64)
    expected = outcome(weight=gradient, bias=torch.full((4,), 1e-9))
    rounded = outcome(weight=gradient * (1 + 1e-6), bias=torch.full((4,), -1e-9))  # a bias that rounding alone makes
    assert largest_difference(rounded, expected)[0] < 1e-5
    keep = torch.rand(64, 64) > 0.1
    again, where = largest_difference(outcome(weight=gradient * keep, bias=torch.zeros(4)), expected)
    assert again > tolerance(expected)
    assert where == "weight"
    assert largest_difference(outcome(weight=gradient), expected)[0] == float("inf")


def test_random_ops_of_a_compiler_run_once() -> None:
    graph = fx.Graph()
    source = graph.placeholder("primals_1")
    noise = graph.call_function(torch.ops.aten.bernoulli.p, (source, 0.5))
    result = graph.call_function(torch.ops.aten.neg.default, (noise,))
    with torch._subclasses.FakeTensorMode():
        for node in (source, noise, result):
            node.meta["val"] = torch.empty(4)
    graph.output((result,))
    module = fx.GraphModule({}, graph)
    ours, eager = (contract(module, forward_output_count=0, eager_kernels=choice) for choice in (False, True))
    recomputable = [[op.recomputable for op in joint.graph.ops if "bernoulli" in op.name] for joint in (ours, eager)]
    assert recomputable == [[False], [True]]


@pytest.mark.parametrize("between", [2, 20])
def test_a_far_product_is_hidden_from_its_sum(between: int) -> None:
    graph = fx.Graph()
    sources = [graph.placeholder("wide"), graph.placeholder("tall")]
    product = graph.call_function(torch.ops.aten.mm.default, tuple(sources))
    other = graph.placeholder("other")
    for _ in range(between):
        other = graph.call_function(torch.ops.aten.neg.default, (other,))
    total = graph.call_function(torch.ops.aten.add.Tensor, (product, other))
    with torch._subclasses.FakeTensorMode():
        sources[0].meta["val"], sources[1].meta["val"] = torch.empty(2, 64), torch.empty(64, 3)
        product.meta["val"] = torch.empty(2, 3)
    graph.output((total,))
    keep_products_in_place(graph)
    assert (total.args[0] is product) == (between < NEAR)
    module = fx.GraphModule({}, graph)
    wide, tall, rest = torch.randn(2, 64), torch.randn(64, 3), torch.randn(2, 3)
    assert torch.equal(module(wide, tall, rest)[0], wide @ tall + rest)
