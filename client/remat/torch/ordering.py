"""The order of first runs: PyTorch's own, with the forward made whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from remat_solver.errors import CaptureError


def order_nodes(module: fx.GraphModule, forward_outputs: list[Any]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The joint graph's nodes in forward and in backward, each in the order of the trace.

    The forward is what was traced before the first reader of a tangent, and every ancestor of a forward
    output: PyTorch sometimes traces one after the first backward node (an activation mutated in place). So is every
    update of an input that needs no gradient of this step.
    """
    nodes = [node for node in module.graph.nodes if node.op in ("call_function", "get_attr")]
    after_tangents = _descendants(module)
    needed = _ancestors(output for output in forward_outputs if isinstance(output, fx.Node))
    needed |= _ancestors(node for node in nodes if _updates_input(node) and node not in after_tangents)
    late = needed & after_tangents
    if late:
        raise CaptureError(
            f"a forward output depends on gradients, through {min(node.name for node in late)}.",
            hint="Compute it outside the compiled model.",
        )
    forward: list[fx.Node] = []
    backward: list[fx.Node] = []
    seen_tangent = False
    for node in nodes:
        seen_tangent = seen_tangent or node in after_tangents
        in_backward = seen_tangent or node.meta.get("partitioner_tag") == "is_backward"
        (backward if in_backward and node not in needed else forward).append(node)
    return forward, backward


def _updates_input(node: fx.Node) -> bool:
    """Whether the node writes an input's new contents (a BatchNorm's statistics), which are traced at the very end."""
    if node.target is not torch.ops.aten.copy_.default or node.meta.get("partitioner_tag") == "is_backward":
        return False
    return isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"


def _ancestors(outputs: Any) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _descendants(module: fx.GraphModule) -> set[fx.Node]:
    """Every node that depends on a tangent."""
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if is_tangent or (node.op != "output" and any(source in found for source in node.all_input_nodes)):
            found.add(node)
    return found
