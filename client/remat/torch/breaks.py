"""Dynamo's many exceptions, said in one line: where in the user's code, why, and what to do next."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable

import torch
from torch import fx
from torch._dynamo import exc
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from remat_solver.errors import CaptureError, GraphBreak, RematError

_TORCH_FOLDER = os.path.dirname(torch.__file__)
_CONTEXT = "Developer debug context:"
_ADVICE = "Move that line out of the model's forward, or write it with tensor operations."
_OUR_ADVICE = {
    "Attempted to wrap RNN, GRU, or LSTM": "Compile the modules before and after it, each by itself.",
    "Module-level backwards hooks": "Put hooks on tensors or parameters (register_hook), or take them off the module.",
}
"""Ours, where Dynamo's would not help, by how its reason begins."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_OWN_FOLDER = os.path.dirname(__file__)


def explain(error: BaseException) -> RematError | None:
    """The error of our tree that says what `error` means, or None for what is the user's own affair."""
    if isinstance(error, RematError):
        return error
    if isinstance(error, exc.BackendCompilerFailed):
        return explain(error.inner_exception)
    if isinstance(error, exc.FailOnRecompileLimitHit):
        return CaptureError(
            "the model was called in more ways than max_shapes allows: input shapes, training or not, numbers among "
            "arguments or attributes. PyTorch's warning about its recompile_limit says what changed last.",
            hint="Pad batches to a few shapes, each of which has its own plan; make numbers that change from step to "
            "step tensors; or raise max_shapes.",
        )
    if isinstance(error, (exc.Unsupported, exc.UserError, exc.TorchRuntimeError, GuardOnDataDependentSymNode)):
        return _graph_break(error)
    return None


def break_at(node: fx.Node, reason: str) -> GraphBreak:
    """The error that says that the model can't be one graph because of what `node` does."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    places = [f"{file}:{line}" for file, line in frames if not file.startswith(_TORCH_FOLDER)]
    return _break(reason, places[-1] if places else "")


def _graph_break(error: Exception) -> GraphBreak:
    reason, advice = _reason(str(getattr(error, "msg", None) or error))
    return _break(reason, _where(error), advice)


def _break(reason: str, where: str, advice: str = "") -> GraphBreak:
    return GraphBreak(
        f"the model can't be captured as one graph: {reason}, at {where or 'an unknown line'}.",
        hint=f'{advice or _ADVICE} Or compile with mode="pieces", which plans several graphs, or mode="eager".',
        where=where,
        reason=reason,
    )


def _reason(message: str) -> tuple[str, str]:
    """Dynamo's headline, and its first piece of advice."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = lines[0].rstrip(".") if lines else "no reason given"
    context = next((line for line in lines if line.startswith(_CONTEXT)), "").removeprefix(_CONTEXT).strip()
    if context.startswith("raised exception"):
        return f"it {context}", "Run the model without remat to see its own traceback."
    ours = next((advice for beginning, advice in _OUR_ADVICE.items() if reason.startswith(beginning)), "")
    if ours:
        return reason, ours
    explanation = next((line for line in lines if line.startswith("Explanation:")), "")
    if explanation:
        reason = f"{reason} ({explanation.removeprefix('Explanation:').strip().rstrip('.')})"
    advice = next((line for line in lines if line.startswith("Hint:")), "")
    return reason, advice.removeprefix("Hint:").strip()


def _where(error: BaseException) -> str:
    """The innermost frame of the user's own code, as "file:line"."""
    stacks: list[Iterable[traceback.FrameSummary]] = [
        getattr(error, "real_stack", None) or (),
        traceback.extract_tb(error.__traceback__),
    ]
    for stack in stacks:
        for frame in reversed(list(stack)):
            if not frame.filename.startswith((_TORCH_FOLDER, _OWN_FOLDER, "<")):
                return f"{frame.filename}:{frame.lineno}"
    return ""
