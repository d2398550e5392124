"""`Backend`: Remat in PyTorch's own words, `torch.compile(model, backend=remat.Backend(budget="8GiB"))`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from remat.torch.allocation import tensors_in
from remat.torch.contract import JointGraph
from remat.torch.joint_capture import JointBackend, Modules
from remat.torch.planning import Measure, Planner, Planning, planner_for
from remat.torch.progress import is_watched, measure_visibly, solve_visibly
from remat.torch.question import OnProgress, asking_planner, measuring, solve_options
from remat.torch.record import PlannedGraph
from remat.torch.resident import fixed_bytes, model_tensors
from remat.torch.shapes import Shapes, bucketing
from remat_solver.plan import Plan


class Backend:
    """A `torch.compile` backend that makes a plan for each training graph, and runs it.

    budget: the highest allowed peak of forward and backward, everything included ("8GiB", "80%" of the
        store-all peak, or bytes). Instead of it, `max_overhead` ("10%" more time than store-all) asks for the
        least memory, and `plan` brings plans made before.
    endpoint: the URL of a solver service, where measured costs are shared too; without it the plan is made in this
        process.
    optimizer: whose state counts as memory; estimated before its first step.
    reserve: bytes to set aside on top (fragmentation, a loss computed outside the model).
    progress: whether to show on stderr what the first step is busy with; by default where that is a terminal.
    shapes: "exact" solves for each input shape; "bucket" takes a plan solved for a slightly larger one, if it fits.
    solve_fields: further fields of `SolveOptions`, such as `time_limit_s`, or the pins `keep` and `recompute`: modules
        or ops, by name pattern ("blocks.0", "*.attention"), that are never run twice, or never kept for the backward.

    Use it with `dynamic=False`: each input shape has its own plan.
    """

    def __init__(
        self,
        budget: str | int | None = None,
        *,
        max_overhead: str | float | None = None,
        plan: Plan | Sequence[Plan] | None = None,
        endpoint: str | None = None,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        reserve: int = 0,
        shapes: Shapes = "exact",
        on_progress: OnProgress | None = None,
        progress: bool | None = None,
        planner: Planner | None = None,
        measure: Measure | None = None,
        **solve_fields: Any,
    ) -> None:
        shows = is_watched() if progress is None else progress
        if planner is None and plan is not None:
            planner = planner_for([plan] if isinstance(plan, Plan) else plan)
        question = ""
        if planner is None:
            asked = solve_options(budget, max_overhead, **solve_fields)
            ask, question = partial(asking_planner, asked, endpoint=endpoint), f"{asked} {endpoint}"
            is_shown = shows and on_progress is None
            planner = solve_visibly(lambda show: ask(on_progress=show)) if is_shown else ask(on_progress=on_progress)
            if shapes == "bucket":
                planner = bucketing(planner, asked)
                question += " bucket"
        # Dynamo keeps every backend for good, so what belongs to the user is held weakly.
        self._model = weakref.ref(model) if model is not None else None
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else None
        self.reserve_bytes = reserve
        self.inputs: Any = None
        """What the model is being called with, while it is (set by `remat.compile`)."""
        if measure is None:
            measure = measure_visibly(measuring(endpoint)) if shows else measuring(endpoint)
        self._planning = Planning(planner=planner, measure=measure, question=question)
        self._joint_backend = JointBackend(self._on_joint)

    __name__ = "remat"

    @property
    def planned(self) -> tuple[PlannedGraph, ...]:
        """A record of each graph planned so far, in order."""
        return tuple(self._planning.planned)

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        return self._joint_backend(module, inputs, **options)

    def _on_joint(self, joint: JointGraph, trace_s: float) -> Modules:
        graph = replace(joint.graph, fixed_bytes=self._fixed_bytes(joint), name=self._name())
        return self._planning.apply(replace(joint, graph=graph), trace_s=trace_s)

    def _name(self) -> str:
        model = self._model() if self._model else None
        return type(model).__name__ if model is not None else ""

    def _fixed_bytes(self, joint: JointGraph) -> int:
        """The model's tensors and the batch where they are known, but at least what the graph takes in."""
        model = self._model() if self._model else None
        optimizer = self._optimizer() if self._optimizer else None
        known = [] if model is None else [*model_tensors(model), *tensors_in(self.inputs)]
        resident = fixed_bytes(known, joint.inputs, optimizer, joint.device)
        return resident + self.reserve_bytes
