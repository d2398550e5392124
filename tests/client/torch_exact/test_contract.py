"""From a step to its op graph: what is an op, a value, an output, and what may be recomputed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remat.torch.capture import capture, capture_joint
from remat.torch.step import Step
from remat_solver.errors import CaptureError
from remat_solver.graph import Graph
from tests.client.torch_exact.networks import WIDTH, Mlp, Normalised, Tied, labels, rows


def op_named(graph: Graph, name: str) -> int:
    (index,) = [i for i, op in enumerate(graph.ops) if op.name == name]
    return index


def test_the_graph_of_a_layer_with_dropout() -> None:
    model = Mlp(1)
    graph = capture(Step(model, (rows(5),)))
    assert [op.name for op in graph.ops] == [
        "layers.0.addmm",
        "relu",
        "dropout.empty_like",
        "dropout.bernoulli",
        "dropout._to_copy",
        "dropout.div",
        "dropout.mul",
        "pow_1",
        "mean",
        "boundary",
        "div_1",
        "pow_2",
        "mul_1",
        "mul_2",
        "dropout.mul_3",
        "threshold_backward",
        "layers.0.mm",
        "layers.0.sum_1",
    ]
    forward = [op.phase for op in graph.ops]
    assert forward == ["forward"] * 9 + ["none"] + ["backward"] * 8
    _, mask, _, noise, dropped = graph.ops[2:7]
    assert [op.writes[0].size_bytes for op in (mask, noise, dropped)] == [5 * WIDTH, 5 * WIDTH * 4, 5 * WIDTH * 4]
    assert [op.recompute_state_bytes for op in (mask, noise)] == [torch.get_rng_state().nbytes, 0]
    assert all(op.time_ns == op.workspace_bytes == 0 for op in graph.ops)
    assert all(op.signature for op in graph.ops if op.name != "boundary")


def test_gradients_and_the_loss_are_outputs_and_run_once() -> None:
    graph = capture(Step(Mlp(1), (rows(),)))
    outputs = {graph.ops[graph.producer[value]].name for value in graph.outputs}
    assert outputs == {"mean", "boundary", "layers.0.mm", "layers.0.sum_1"}
    assert not any(graph.ops[graph.producer[value]].recomputable for value in graph.outputs)


def test_views_are_no_ops_and_a_tied_matrix_is_read_once() -> None:
    graph = capture(Step(Tied(), (torch.randint(20, (2, 3)),), loss_fn=lambda out: out.flatten().sum()))
    names = [op.name.rsplit(".", 1)[-1] for op in graph.ops]
    assert not {"t", "view", "detach", "_unsafe_view", "transpose"} & set(names)
    for op in graph.ops:
        assert all(value.size_bytes > 0 for value in op.writes)


def test_batch_norm_owns_its_statistics_apart() -> None:
    graph = capture(Step(Normalised(), (torch.randn(2, 3, 4, 4), labels(2))))
    norm = op_named(graph, "norm._native_batch_norm_legit_functional")
    owner = op_named(graph, "norm._native_batch_norm_legit_functional.statistics")
    assert owner == norm - 1
    assert graph.ops[norm].recomputable
    assert not graph.ops[owner].recomputable
    assert len(graph.ops[norm].writes) == 3
    assert len(graph.ops[owner].writes) == 2
    assert not set(graph.written_by(owner)) & set(graph.outputs)  # copied into the buffers at the boundary
    boundary = op_named(graph, "boundary")
    assert set(graph.written_by(owner)) <= set(graph.ops[boundary].reads)


def test_tangents_of_outputs_come_into_being_at_the_boundary() -> None:
    joint = capture_joint(Step(Tied(), (torch.randint(20, (2, 3)),)))
    boundary = joint.graph.ops[joint.boundary]
    assert joint.loss_is_outside
    assert [value.size_bytes for value in boundary.writes] == [2 * 3 * 20 * 4]
    assert not set(joint.graph.written_by(joint.boundary)) & set(joint.graph.outputs)


def test_fixed_bytes_are_weights_buffers_batch_gradients_and_optimizer_state() -> None:
    model = Normalised()
    batch = (torch.randn(2, 3, 4, 4), labels(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    rest = sum(buffer.nbytes for buffer in model.buffers()) + sum(tensor.nbytes for tensor in batch)
    before = capture(Step(model, batch, optimizer=optimizer))
    assert before.fixed_bytes == 2 * weights + rest  # with the momenta of the first step to come
    model(*batch).backward()
    optimizer.step()
    assert capture(Step(model, batch, optimizer=optimizer)).fixed_bytes == 3 * weights + rest  # gradients exist
    assert capture(Step(model, batch)).structure_hash == before.structure_hash


def test_equal_steps_have_equal_graphs() -> None:
    first, second = (capture(Step(Mlp(), (rows(),))) for _ in range(2))
    assert first == second
    assert capture(Step(Mlp(), (rows(6),))).structure_hash != first.structure_hash


def test_capturing_changes_nothing() -> None:
    model = Normalised()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(3)
    capture(Step(model, (torch.randn(2, 3, 4, 4), labels(2))))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    torch.randn(2, 3, 4, 4), labels(2)
    assert torch.equal(drawn, torch.rand(1))
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_step_without_gradients_is_refused() -> None:
    with pytest.raises(CaptureError, match="no backward"):
        capture(Step(nn.Linear(WIDTH, 2).requires_grad_(False), (rows(),)))


class LateOutput(nn.Module):
    """Returns an alias of an activation that is changed in place: PyTorch traces it late."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.linear(x)
        shifted = functional.relu(hidden) * 2
        return hidden.mul_(3), shifted


def test_every_ancestor_of_a_forward_output_is_in_the_forward() -> None:
    joint = capture_joint(Step(LateOutput(), (rows(),)))
    boundary = joint.graph.ops[joint.boundary]
    assert all(joint.graph.producer[value] < joint.boundary for value in boundary.reads)
    assert all(op.phase == "forward" for op in joint.graph.ops[: joint.boundary])


def test_the_meta_device_is_refused_because_it_traces_other_ops() -> None:
    """A GPT's step would come out with a third of its memory."""
    model = Mlp(1).to("meta")
    with pytest.raises(CaptureError, match="meta device"):
        capture(Step(model, (rows(5).to("meta"),)))
