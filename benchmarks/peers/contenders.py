"""The ways of running one training step that are compared: PyTorch's own, and ours.

Each contender owns a copy of the step, so that none can disturb another, and differs from the plain one only in how
the copy is run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import remat
from benchmarks.peers.networks import Network
from remat.torch import Backend, Step
from remat.torch.allocation import tensors_in
from remat.torch.attachment import eager_plans
from remat.torch.both_ways import restored
from remat.torch.inductor.partitioners import plain_backend
from remat.torch.inductor.planning import plan_within
from remat.torch.inductor.survey import Surveyed
from remat.torch.joint_capture import compiled_call
from remat.torch.resident import fixed_bytes, model_tensors
from remat_solver.budget import Budget
from remat_solver.graph import Graph
from remat_solver.plan import Plan

PLAIN = "plain"
TRACED = "aot_eager"
CHECKPOINT = "checkpoint"
SELECTIVE = "selective"
MEMORY_BUDGET = "memory budget"
EXACT = "remat exact"
WITHOUT_RECOMPUTATION = "store-all"
STORE_ALL = f"{EXACT} {WITHOUT_RECOMPUTATION}"
EAGER = "remat eager"
COMPILED_MEMORY_BUDGET = "compiled memory budget"
INDUCTOR = "remat inductor"
COMPILED_FAMILIES = (COMPILED_MEMORY_BUDGET, INDUCTOR)
"""The second class, under Inductor; its plain run is `torch.compile` by itself."""

FAMILIES = (TRACED, CHECKPOINT, SELECTIVE, MEMORY_BUDGET, EXACT, EAGER)

BUDGET_SETTINGS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Values of `activation_memory_budget` that are tried; the setting that is best at a peak competes there."""

_aten = torch.ops.aten
_MATRIX_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default)
_COSTLY = (
    *_MATRIX_PRODUCTS,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
)
"""What selective checkpointing saves, after the list that PyTorch's own examples give."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contender:
    """One way of running the step. `run` does forward and backward on `step`'s model and returns the loss.

    The other fields are those of our plans: what was asked for and promised, in bytes of forward and backward alone.
    """

    family: str
    setting: str
    step: Step
    run: Callable[[], Tensor]
    budget_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    predicted_overhead: float | None = None

    @property
    def name(self) -> str:
        """For people and as a key."""
        return f"{self.family} {self.setting}".strip()


def plain(step: Step) -> Contender:
    """The step as its author wrote it."""
    own = copy.deepcopy(step)
    return Contender(family=PLAIN, setting="", step=own, run=partial(_run, own, _eager_call(own)))


def traced(step: Step) -> Contender:
    """PyTorch's own trace, run op by op: what any captured graph costs before a plan is made."""
    return _compiled(step, TRACED, "", torch._dynamo.lookup_backend("aot_eager"))


def checkpointed(step: Step, network: Network) -> list[Contender]:
    """`torch.utils.checkpoint` around every block, and around every second one."""
    settings = {"every block": 1, "every 2nd block": 2}
    return [_wrapped(step, network, CHECKPOINT, setting, stride, None) for setting, stride in settings.items()]


def selective(step: Step, network: Network) -> list[Contender]:
    """Selective checkpointing of every block: costly ops are saved, or every second matrix product among them."""
    settings: dict[str, Callable[[], Any]] = {
        "costly ops": lambda: create_selective_checkpoint_contexts(list(_COSTLY)),
        "every 2nd product": lambda: create_selective_checkpoint_contexts(_every_second_product()),
    }
    return [_wrapped(step, network, SELECTIVE, setting, 1, contexts) for setting, contexts in settings.items()]


def memory_budgets(step: Step) -> list[Contender]:
    """`activation_memory_budget`, at each of its settings."""
    return [_compiled(step, MEMORY_BUDGET, f"{budget}", _budget_backend(budget)) for budget in BUDGET_SETTINGS]


def exact(step: Step, graph: Graph, plan: Plan, setting: str) -> Contender:
    """Our plan, op by op."""
    own = copy.deepcopy(step)
    backend = Backend(plan=plan, model=own.model, optimizer=own.optimizer, measure=lambda _: graph)
    call = compiled_call(own.model, backend, own.loss_fn)
    return Contender(
        family=EXACT,
        setting=setting,
        step=own,
        run=partial(_run, own, call),
        budget_bytes=plan.budget_bytes - graph.fixed_bytes,
        predicted_peak_bytes=plan.peak_bytes - graph.fixed_bytes,
        predicted_overhead=plan.overhead,
    )


def eager(step: Step, above_start_bytes: int, setting: str) -> Contender:
    """Our eager mode, planned here. Raises `InfeasibleBudget`."""
    own = copy.deepcopy(step)
    tensors = [*model_tensors(own.model), *tensors_in(own.args)]
    fixed = fixed_bytes(tensors, [], own.optimizer, next(own.model.parameters()).device)
    settings = {"optimizer": own.optimizer, "loss_fn": own.loss_fn}
    remat.compile(own.model, mode="eager", budget=fixed + above_start_bytes, **settings)
    with restored(own):
        own.model(*own.args)
    (plan,) = eager_plans(own.model)
    return Contender(
        family=EAGER,
        setting=setting,
        step=own,
        run=partial(_run, own, own.model),
        budget_bytes=plan.budget_bytes - fixed,
        predicted_peak_bytes=plan.predicted_peak_bytes - fixed,
    )


def compiled_plain(step: Step) -> Contender:
    """What `torch.compile` does by itself."""
    return _compiled(step, PLAIN, "", plain_backend())


def compiled_in_float64(step: Step) -> Contender:
    """The same in twice the precision, to judge the others by."""
    own = copy.deepcopy(step)
    own.model.double()
    args = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in own.args)
    return _compiled(replace(own, args=args), PLAIN, "in float64", plain_backend())


def compiled_memory_budget(step: Step, budget: float) -> Contender:
    """`activation_memory_budget` under Inductor."""
    return _compiled(step, COMPILED_MEMORY_BUDGET, f"{budget}", _with_budget(plain_backend(), budget))


def inductor(step: Step, surveyed: Surveyed, above_start_bytes: int, setting: str) -> Contender:
    """Our inductor mode, planned here on the surveyed step and compiled for a copy. Raises `InfeasibleBudget`."""
    fixed = surveyed.bench.resident_bytes
    with restored(surveyed.bench.step):
        planned = plan_within(surveyed, Budget(budget_bytes=fixed + above_start_bytes))
    contender = _compiled(step, INDUCTOR, f"{setting}: {planned.plan.cut_by}", planned.backend)
    return replace(
        contender,
        budget_bytes=above_start_bytes,
        predicted_peak_bytes=planned.plan.predicted_peak_bytes - fixed,
        predicted_overhead=planned.plan.plan.overhead if planned.plan.plan else 0.0,
    )


def _compiled(step: Step, family: str, setting: str, backend: Callable[..., Any]) -> Contender:
    own = copy.deepcopy(step)
    call = compiled_call(own.model, backend, own.loss_fn)
    return Contender(family=family, setting=setting, step=own, run=partial(_run, own, call))


def _wrapped(
    step: Step, network: Network, family: str, setting: str, stride: int, contexts: Callable[[], Any] | None
) -> Contender:
    own = copy.deepcopy(step)
    _checkpoint_blocks(network.blocks(own.model)[::stride], contexts)
    return Contender(family=family, setting=setting, step=own, run=partial(_run, own, _eager_call(own)))


def _checkpoint_blocks(blocks: Sequence[nn.Module], contexts: Callable[[], Any] | None) -> None:
    options = {} if contexts is None else {"context_fn": contexts}
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def _every_second_product() -> Callable[..., CheckpointPolicy]:
    """A policy with a counter of its own, for one run of one block."""
    seen = 0

    def decide(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        nonlocal seen
        if op in _MATRIX_PRODUCTS or op is _aten.convolution.default:
            seen += 1
            return CheckpointPolicy.MUST_SAVE if seen % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if op in _COSTLY else CheckpointPolicy.PREFER_RECOMPUTE

    return decide


def _budget_backend(budget: float) -> Callable[..., Any]:
    """`aot_eager` whose partitioner sees the setting."""
    return _with_budget(torch._dynamo.lookup_backend("aot_eager"), budget)


def _with_budget(compile_graph: Callable[..., Any], budget: float) -> Callable[..., Any]:
    """The backend with the setting put around the compilation, which may come late."""

    def backend(module: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        with functorch_config.patch(activation_memory_budget=budget):
            return compile_graph(module, inputs, **options)

    return backend


def _eager_call(step: Step) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        output = step.model(*args, **kwargs)
        return step.loss_fn(output) if step.loss_fn else output

    return call


def _run(step: Step, call: Callable[..., Any]) -> Tensor:
    loss: Tensor = call(*step.args, **dict(step.kwargs or {}))
    loss.backward()
    return loss
