"""Names of ops: where in the model they come from, then PyTorch's own name for the node."""

from __future__ import annotations

import re

from torch import fx

_INDEX = re.compile(r"\._modules\['([^']+)'\]|\['?([^'\]]+)'?\]")
_ROOT = re.compile(r"^(L\[.*?\](\.__self__)?|self|L__self__)\.?")


def op_name(node: fx.Node) -> str:
    """For example "blocks.3.mlp.addmm_7"; ops outside every module bear PyTorch's name only."""
    path = module_path(node)
    return f"{path}.{node.name}" if path else node.name


def module_path(node: fx.Node) -> str:
    """The dotted path of the innermost module that the node belongs to, for backward nodes too; "" if none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    path = _ROOT.sub("", path)
    return _INDEX.sub(lambda match: "." + (match[1] or match[2]), path).strip(".")
