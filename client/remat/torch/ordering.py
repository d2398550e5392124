"""The order of first runs: PyTorch's own, with the forward made whole."""

from __future__ import annotations

from typing import Any

from torch import fx

from remat_solver.errors import CaptureError


def order_nodes(module: fx.GraphModule, forward_outputs: list[Any]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The joint graph's nodes in forward and in backward, each in the order of the trace.

    The forward is what was traced before the first reader of a tangent, and every ancestor of a forward
    output: PyTorch sometimes traces one after the first backward node (an activation mutated in place).
    """
    nodes = [node for node in module.graph.nodes if node.op in ("call_function", "get_attr")]
    needed = _ancestors(output for output in forward_outputs if isinstance(output, fx.Node))
    after_tangents = _descendants(module)
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
