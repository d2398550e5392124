"""`Backend`: Remat in PyTorch's own words, `torch.compile(model, backend=remat.Backend(budget="8GiB"))`."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
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
from remat.torch.running_out import OnOom, Shortage, kept_bytes, smaller_budget
from remat.torch.shapes import Shapes, bucketing
from remat_solver.budget import format_bytes, parse_bytes
from remat_solver.errors import InvalidRequest
from remat_solver.module_budgets import read_module_budgets
from remat_solver.options import SolveOptions
from remat_solver.plan import Plan

_log = logging.getLogger("remat")


class Backend:
    """A `torch.compile` backend that makes a plan for each training graph, and runs it.

    budget: the highest allowed peak of forward and backward, everything included ("8GiB", "80%" of the
        store-all peak, or bytes). Instead of it, `max_overhead` ("10%" more time than store-all) asks for the
        least memory, and `plan` brings plans made before.
    endpoint: the URL of a solver service, where measured costs are shared too; without it the plan is made in this
        process.
    optimizer: whose state counts as memory; estimated before its first step.
    reserve: bytes (or "1GiB") to set aside for what runs outside: a loss that is no part of the model, fragmentation.
    module_budgets: bytes by name pattern that modules may hold for the backward (see `remat.compile`).
    on_oom: "replan" runs a step that runs out of memory again, by a plan with a smaller budget (see `remat.compile`,
        which is needed for it).
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
        reserve: str | int = 0,
        shapes: Shapes = "exact",
        module_budgets: Mapping[str, str | int] | None = None,
        on_oom: OnOom = "raise",
        on_progress: OnProgress | None = None,
        progress: bool | None = None,
        planner: Planner | None = None,
        measure: Measure | None = None,
        **solve_fields: Any,
    ) -> None:
        self._shows = is_watched() if progress is None else progress
        self._endpoint, self._shapes, self._on_progress = endpoint, shapes, on_progress
        self._module_budgets = read_module_budgets(module_budgets or {})
        self._asked: SolveOptions | None = None
        question = ""
        if planner is None and plan is not None:
            planner = planner_for([plan] if isinstance(plan, Plan) else plan)
        elif planner is None:
            self._asked = solve_options(budget, max_overhead, **solve_fields)
            planner, question = self._ask(self._asked)
        self.replans = on_oom == "replan"
        self.is_outdated = False
        """Whether the plans of earlier calls were found too large, so that all must be made again."""
        self._has_effects = False
        self._check(on_oom)
        # Dynamo keeps every backend for good, so what belongs to the user is held weakly.
        self._model = weakref.ref(model) if model is not None else None
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else None
        self.reserve_bytes = parse_bytes(reserve, field="reserve")
        self.inputs: Any = None
        """What the model is being called with, while it is (set by `remat.compile`)."""
        if measure is None:
            measure = measure_visibly(measuring(endpoint)) if self._shows else measuring(endpoint)
        self._planning = Planning(planner=planner, measure=measure, question=question)
        self._joint_backend = JointBackend(self._on_joint, replan=self._replan if self.replans else None)

    __name__ = "remat"

    @property
    def planned(self) -> tuple[PlannedGraph, ...]:
        """A record of each graph planned so far, in order."""
        return tuple(self._planning.planned)

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        return self._joint_backend(module, inputs, **options)

    @property
    def can_repeat(self) -> bool:
        """Whether a failed forward may simply be called again."""
        return bool(self._planning.planned) and not self._has_effects

    def lower_budget(self, shortage: Shortage) -> None:
        """Asks for less from now on. Raises `InfeasibleBudget` when the next plan is made, if nothing smaller fits."""
        assert self._asked is not None
        largest = max(self._planning.planned, key=lambda record: record.predicted_peak_bytes)
        peak = largest.predicted_peak_bytes
        budget = smaller_budget(peak, largest.graph.fixed_bytes, shortage)
        _log.warning(
            "out of memory with a plan for %s: the step is run again by a plan for %s.",
            format_bytes(peak),
            format_bytes(budget),
        )
        asked = replace(self._asked, budget_bytes=budget, budget_fraction=None, max_overhead=None)
        self._planning.planner, self._planning.question = self._ask(asked)
        self._planning.known.clear()
        self.forget_records()
        self.is_outdated = True

    def forget_records(self) -> None:
        """Empties `planned`."""
        self._planning.planned.clear()

    def _replan(self, joint: JointGraph, shortage: Shortage) -> Modules:
        self.lower_budget(shortage)
        return self._on_joint(joint, 0.0)

    def _ask(self, asked: SolveOptions) -> tuple[Planner, str]:
        """Who answers a question, and what names it among the ranks of a job."""
        ask = partial(asking_planner, asked, endpoint=self._endpoint, module_budgets=self._module_budgets)
        is_shown = self._shows and self._on_progress is None
        planner = solve_visibly(lambda show: ask(on_progress=show)) if is_shown else ask(on_progress=self._on_progress)
        question = f"{asked} {sorted(self._module_budgets.items())} {self._endpoint} {self._shapes}"
        return bucketing(planner, asked) if self._shapes == "bucket" else planner, question

    def _check(self, on_oom: str) -> None:
        if on_oom not in ("raise", "replan"):
            raise InvalidRequest(f"on_oom {on_oom!r} is unknown.", hint="Choose raise or replan.", field="on_oom")
        if self._asked is None:
            hint = "Give a budget instead."
            if self.replans:
                raise InvalidRequest("a given plan can't be planned again.", hint=hint, field="on_oom")
            if self._module_budgets:
                raise InvalidRequest("a given plan knows no module budgets.", hint=hint, field="module_budgets")

    def _on_joint(self, joint: JointGraph, trace_s: float) -> Modules:
        self._has_effects = self._has_effects or joint.has_effects
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
        return resident + self.reserve_bytes + (kept_bytes(joint) if self.replans else 0)
