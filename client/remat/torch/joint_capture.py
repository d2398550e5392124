"""The way in: a `torch.compile` backend that hands over each joint graph and runs what it gets back.

Capture and apply both go through it, because PyTorch's exporters order inputs differently and untie tied
weights. Of PyTorch's private names it needs `aot_autograd`, the output descriptors and the compile id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import CompileContext

from remat.torch.adapters import adapter_for
from remat.torch.autocast import backward_traced_outside, watch_backward
from remat.torch.contract import JointGraph, contract
from remat.torch.decompositions import eager_kernels
from remat.torch.executor import BoxedFunction, boxed_function
from remat.torch.running_out import Repeatable, Replan
from remat.torch.sharding import is_sharded, refuse_sharded_parts, within_hooks

Modules = tuple[fx.GraphModule, fx.GraphModule]
JointHandler = Callable[[JointGraph, float], Modules]
"""Takes a contracted joint graph and the seconds that AOTAutograd took to trace it; gives forward and backward."""
Wrap = Callable[[fx.GraphModule, str, BoxedFunction], BoxedFunction]

_log = logging.getLogger("remat")
_REPEATABLE = "remat_repeatable"

MAX_SHAPES = 64
"""How many input shapes one model may be compiled for, unless its user says otherwise."""

_NO_LIMIT = 2**30
"""On how often Dynamo compiles one function."""


class JointBackend:
    """A backend for `torch.compile` that calls `on_joint` for every training graph.

    With `wrap` a model may come as several graphs; it is given what runs each ("forward" or "backward"), and gives
    what is called in its place. With `replan` a backward that runs out of memory begins anew with what that returns.
    """

    __name__ = "remat"

    def __init__(self, on_joint: JointHandler, *, wrap: Wrap | None = None, replan: Replan | None = None) -> None:
        self.on_joint = on_joint
        self.wrap = wrap
        self.replan = replan
        self._frames: set[int | None] = set()
        self._began = 0.0
        self._compile = aot_autograd(
            fw_compiler=partial(self._function, "forward"),
            bw_compiler=partial(self._function, "backward"),
            inference_compiler=partial(self._function, "inference"),
            partition_fn=self._partition,
        )

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any], **_options: Any) -> Callable[..., Any]:
        self._began = perf_counter()
        with eager_kernels(), backward_traced_outside():
            return self._compile(module, inputs)

    def _partition(
        self, joint: fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int, **_hints: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        if self.wrap is None:
            self._note_frame()
        contracted = contract(joint, forward_output_count=num_fwd_outputs)
        modules = self.on_joint(contracted, perf_counter() - self._began)
        if self.replan:
            repeatable = Repeatable(joint=contracted, replan=self.replan)
            for module in modules:
                module.meta[_REPEATABLE] = repeatable
        return modules

    def _function(self, phase: str, module: fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        function = boxed_function(module, label=phase)
        if self.replan and phase != "inference":
            function = module.meta[_REPEATABLE].guard(phase, function)
        return function if self.wrap is None else self.wrap(module, phase, function)

    def _note_frame(self) -> None:
        """Dynamo gives each piece of a split model a frame of its own; recompiles for new shapes keep theirs."""
        compile_id = CompileContext.current_compile_id()
        self._frames.add(compile_id.frame_id if compile_id else None)
        if len(self._frames) == 2:
            _log.warning(
                "PyTorch split the model into several graphs. Each is planned as if it were alone, so together they "
                "may exceed the budget. Compile with fullgraph=True to see where the model splits."
            )


def traced_backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """PyTorch's own `aot_eager`, tracing what eager mode runs, as `JointBackend` does."""
    with eager_kernels(), backward_traced_outside():
        backend: Any = torch._dynamo.lookup_backend("aot_eager")
        return backend(module, inputs)  # type: ignore[no-any-return]


def compiled_call(
    model: torch.nn.Module,
    backend: Callable[..., Any],
    loss_fn: Callable[[Any], Any] | None = None,
    *,
    max_shapes: int = MAX_SHAPES,
    one_graph: bool = True,
) -> Callable[..., Any]:
    """`model(...)`, or `loss_fn(model(...))`, compiled as one graph per input shape, or as many as it takes.

    Dynamo would trace NumPy's random numbers as PyTorch's, silently: it is told to refuse them. Log lines in
    the forward, which it can't trace, are left out. Hooks that are put on modules later are guarded on; PyTorch
    by default goes on without them. Inside DistributedDataParallel the model stays one graph, where PyTorch would cut
    it at the buckets of gradients; hooks of `fully_shard` around the model stay outside the graph. What a library's
    models need is done by their adapter. Pieces are without limit: the same code is compiled for every layer that has
    a number of its own, for every model and every trial of a plan, and beyond its limits Dynamo compiles nothing.
    """
    refuse_sharded_parts(model)
    adapter = adapter_for(model)
    sharded = is_sharded(model)
    # past the slot in which the compiled call will lie, and past hooks that can't be traced
    call_model: Callable[..., Any] = model.forward if sharded else model._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        output = call_model(*args, **kwargs)
        return output if loss_fn is None else loss_fn(output)

    limit = max_shapes if one_graph else _NO_LIMIT
    settings: dict[str, Any] = {"recompile_limit": limit}  # torch's stubs lack it
    compiled: Callable[..., Any] = torch.compile(
        _with_code_of_its_own(call), backend=backend, fullgraph=one_graph, dynamic=False, **settings
    )
    tracing = torch._dynamo.config.patch(
        use_numpy_random_stream=True,
        ignore_logging_functions=_logging_functions(),
        skip_nnmodule_hook_guards=False,
        optimize_ddp=False,
        accumulated_recompile_limit=_NO_LIMIT,
    )

    def run(*args: Any, **kwargs: Any) -> Any:
        with tracing, adapter.calling(kwargs):
            args, kwargs = adapter.prepare(args, kwargs)
            output = within_hooks(model, compiled, args, kwargs) if sharded else compiled(*args, **kwargs)
        watch_backward(output)
        return output

    return run


def _logging_functions() -> set[Callable[..., Any]]:
    """The methods of loggers, with those that libraries add (transformers' `warning_once`)."""
    names = ("debug", "info", "warning", "error", "exception", "critical", "log", "warning_once", "info_once")
    return {getattr(logging.Logger, name) for name in names if hasattr(logging.Logger, name)}


def _with_code_of_its_own(function: FunctionType | Callable[..., Any]) -> Callable[..., Any]:
    """A copy with a fresh code object: Dynamo files what it compiles under that, and all models share one otherwise."""
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__
    )
