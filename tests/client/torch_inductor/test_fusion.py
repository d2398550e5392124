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
    source, negate = nodes.placeholder("source"), torch.ops.aten.neg.default
    return JointGraph(
        graph=Graph(ops=ops, outputs=outputs),
        module=fx.GraphModule({}, fx.Graph()),
        nodes=tuple(nodes.create_node("call_function", negate, (source,), name=op.name) for op in ops),
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


def test_what_is_not_stored_is_computed_in_each_of_its_readers() -> None:
    joint = joint_of(op("load"), op("scale", 0), op("one", 1), op("two", 1), op("total", 2, 3), outputs=(4,))
    stored = {"load", "one", "two", "total"}
    fused = fuse(joint, {"scale", *stored}, stored)
    assert names(fused, joint) == [["load"], ["scale", "one"], ["scale", "two"], ["total"]]
    assert [result.reads for result in fused.graph.ops] == [(), (0,), (0,), (1, 2)]
    assert fused.graph.outputs == (3,)
    assert fused.unfused((0, 1, 2, 3)) == (0, 1, 2, 1, 3, 4)
    simulate(fused.graph, store_all_schedule(fused.graph))  # raises if something is read before it is written


def test_the_backward_computes_again_what_the_forward_did_not_store() -> None:
    forward = [op("load"), op("mask", 0), op("keep", 1)]
    joint = joint_of(*forward, op("gradient", 1, 2, phase="backward"), outputs=(3,))
    fused = fuse(joint, {"load", "mask", "keep", "gradient"}, {"load", "keep", "gradient"})
    assert names(fused, joint) == [["load"], ["mask", "keep"], ["mask", "gradient"]]
    assert fused.graph.ops[2].phase == "backward"


def test_what_runs_once_is_an_output_or_is_no_elementwise_op_stays_by_itself() -> None:
    joint = joint_of(
        op("once", recomputable=False), op("product", 0), op("result", 1), op("end", 1, 2, 0), outputs=(2, 3)
    )
    joint.nodes[1].target = torch.ops.aten.mm.default  # type: ignore[union-attr]
    fused = fuse(joint, {"once", "product", "result", "end"}, {"end"})
    assert names(fused, joint) == [["once"], ["product"], ["result"], ["end"]]


def test_what_came_into_no_kernel_is_inlined_if_it_is_elementwise() -> None:
    """PyTorch's own partitioner drops what is computed twice; we run it in the backward's kernel."""
    joint = joint_of(op("load"), op("twice", 0), op("use", 1), outputs=(2,))
    assert names(fuse(joint, {"load", "use"}, {"load", "use"}), joint) == [["load"], ["twice", "use"]]


def test_a_kernel_costs_its_arithmetic_and_the_traffic_at_its_edge() -> None:
    """Four ops that only move bytes, three of them in one kernel: what passes inside it costs nothing."""
    size_bytes = 2**20
    chain = [op(f"move{i}", *([i - 1] if i else []), size_bytes=size_bytes, time_ns=2 * size_bytes) for i in range(4)]
    joint = joint_of(*chain, op("end", 3, size_bytes=0, time_ns=0), outputs=(4,))
    fused = with_kernel_times(fuse(joint, {"move0", "move1", "move2", "move3"}, {"move0", "move3"}), joint.graph)
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
