"""What happened to each graph of a model: its plan, what was asked for, and what was built."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from remat_solver.graph import Graph
from remat_solver.plan import Plan


@dataclass(frozen=True, kw_only=True)
class PlannedGraph:
    """One captured graph (one per input shape) and the plan that runs in its place.

    `predicted_peak_bytes` is the referee's for this graph, `fixed_bytes` included: the plan's own figure, unless
    it was made from other measurements. `runs_planned` counts the op runs that the schedule asks for,
    `runs_built` those in the code that runs: equal, or the plan would have been refused.
    `loss_is_outside` says that the model's output is no loss, so that memory taken between forward and
    backward is not in the plan. `own_regions` counts the model's regions of `torch.utils.checkpoint`, in whose place
    the plan decides. Seconds are wall time.
    """

    graph: Graph
    plan: Plan
    device: torch.device
    predicted_peak_bytes: int
    runs_planned: int
    runs_built: int
    loss_is_outside: bool
    own_regions: int
    trace_s: float
    measure_s: float
    solve_s: float
    build_s: float
