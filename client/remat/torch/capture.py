"""`capture`: a training step -> its op graph. Nothing runs but PyTorch's tracing."""

from __future__ import annotations

from dataclasses import replace

import torch

from remat.torch.allocation import tensors_in
from remat.torch.breaks import explain
from remat.torch.contract import JointGraph
from remat.torch.joint_capture import JointBackend, Modules, compiled_call
from remat.torch.resident import fixed_bytes, model_tensors
from remat.torch.step import Step
from remat_solver.errors import CaptureError
from remat_solver.graph import Graph


class _Captured(Exception):
    """Leaves PyTorch's compiler once the joint graph is there."""

    def __init__(self, joint: JointGraph) -> None:
        super().__init__("captured")
        self.joint = joint


def capture(step: Step) -> Graph:
    """The op graph of `step`, without costs: times and workspaces are zero until `measure` fills them in.

    Raises `GraphBreak` with the line at which PyTorch can't follow the model, and `CaptureError` when
    there is nothing to train.
    """
    joint = capture_joint(step)
    tensors = [*model_tensors(step.model), *tensors_in((step.args, dict(step.kwargs or {})))]
    resident = fixed_bytes(tensors, joint.inputs, step.optimizer, joint.device)
    return replace(joint.graph, fixed_bytes=resident, name=type(step.model).__name__)


def capture_joint(step: Step) -> JointGraph:
    """The joint graph of `step` with its contraction."""
    call = compiled_call(step.model, JointBackend(_hand_over), step.loss_fn)
    try:
        with torch.enable_grad():
            call(*step.args, **dict(step.kwargs or {}))
    except Exception as error:
        captured = getattr(error, "inner_exception", error)
        if isinstance(captured, _Captured):
            return captured.joint
        explained = explain(error)
        if explained is None:
            raise
        raise explained.with_traceback(None) from None
    raise CaptureError(
        "the step has no backward: nothing that requires a gradient was computed.",
        hint="Put the model in training mode, with parameters that require gradients.",
    )


def _hand_over(joint: JointGraph, _trace_s: float) -> Modules:
    raise _Captured(joint)
