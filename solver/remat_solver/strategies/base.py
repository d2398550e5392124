"""The small interface behind which every strategy stands: a `Task` in, a `Found` out.

A strategy is a function `strategy(task) -> Found`. It returns the best schedule it has when it is
done, when `task.remaining_s()` is used up or when `task.stop_requested()` turns true, together with
a proven lower bound. With no schedule to return it raises what the `no_plan` of the task gives, and
where it has proved that none exists, what `infeasible` gives. It need not referee its schedule:
`solve` does that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from remat_solver.engines.base import Engine
from remat_solver.errors import InfeasibleBudget, NoPlanInTime, SolveCancelled, SolveError
from remat_solver.graph import Graph
from remat_solver.options import Progress, SolveOptions
from remat_solver.plan import ProofScope, share


def _never() -> bool:
    return False


def _ignore(progress: Progress) -> None:
    del progress


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a strategy is asked: the least time within `budget_bytes` (everything included).

    `graph` is the planning graph: ops that the caller pinned with `keep` are already not recomputable
    in it. `absent_at_boundary` are ops (pinned with `recompute`) whose values, outputs excepted, must
    not be in memory between the ops `boundary - 1` and `boundary`; a strategy that can't honour them
    raises `StrategyNotApplicable`. `find_engine` makes the MIP engine, and raises `EngineMissing`.
    `started_s` and `deadline_s` are readings of `time.monotonic()`.
    """

    graph: Graph
    budget_bytes: int
    options: SolveOptions
    find_engine: Callable[[], Engine]
    deadline_s: float
    started_s: float = field(default_factory=time.monotonic)
    absent_at_boundary: frozenset[int] = frozenset()
    boundary: int | None = None
    stop_requested: Callable[[], bool] = _never
    on_progress: Callable[[Progress], None] = _ignore

    def elapsed_s(self) -> float:
        """Wall seconds since the task began."""
        return time.monotonic() - self.started_s

    def remaining_s(self) -> float:
        """Wall seconds until the deadline, never negative."""
        return max(0.0, self.deadline_s - time.monotonic())

    def is_over(self) -> bool:
        """Whether to return now with the best schedule so far."""
        return self.stop_requested() or self.remaining_s() <= 0

    def stopped_by(self) -> str:
        """Why a strategy that is not finished must return: "caller", "time limit", or "" if it need not."""
        if self.stop_requested():
            return "caller"
        return "" if self.remaining_s() > 0 else "time limit"

    def report(self, *, bound_ns: int, incumbent_ns: int | None = None, slots: int = 0, stage: str = "") -> None:
        """Tells the caller where the search stands."""
        gap = None
        if incumbent_ns is not None:
            gap = share(max(0, incumbent_ns - bound_ns), self.graph.total_time_ns)
        self.on_progress(
            Progress(
                elapsed_s=self.elapsed_s(),
                bound_ns=bound_ns,
                incumbent_ns=incumbent_ns,
                gap=gap,
                slots=slots,
                stage=stage,
            )
        )

    def infeasible(self, *, proof_scope: ProofScope, below_bytes: int | None = None) -> InfeasibleBudget:
        """The error for a proof that no schedule fits; `below_bytes`: no budget below it has a plan."""
        below = max(self.budget_bytes + 1, below_bytes or 0)
        return InfeasibleBudget(
            InfeasibleBudget.describe(self.budget_bytes, below, proof_scope),
            hint="Raise the budget, or ask minimum_budget for the least one that works.",
            budget_bytes=self.budget_bytes,
            proven_infeasible_below_bytes=below,
            proof_scope=proof_scope,
        )

    def no_plan(self) -> SolveError:
        """The error for a search that ended without a schedule and without a proof."""
        if self.stop_requested():
            return SolveCancelled(
                "the solve was stopped before any plan was found.", hint="Nothing is known about whether one exists."
            )
        return NoPlanInTime(
            f"no plan within {self.budget_bytes} bytes was found in {self.options.time_limit_s:g} s; one may exist.",
            hint="Allow more time, or raise the budget.",
            budget_bytes=self.budget_bytes,
            time_limit_s=self.options.time_limit_s,
        )


@dataclass(frozen=True, kw_only=True)
class Found:
    """A schedule and what is proven about it.

    `bound_ns`: no schedule of the class `proof_scope` that fits takes less time ("order": any schedule
    whose first computations keep the graph's order). `stopped_by` is "" for a search that finished.
    """

    schedule: tuple[int, ...]
    bound_ns: int
    proof_scope: ProofScope = "order"
    engine: str = ""
    engine_version: str = ""
    rounds: int = 0
    slots: int = 0
    rows: int = 0
    columns: int = 0
    stopped_by: str = ""


class Strategy(Protocol):
    """Finds a schedule for a task; raises the errors of a solve."""

    def __call__(self, task: Task) -> Found:
        """Returns the best schedule found, with its proof."""
        ...
