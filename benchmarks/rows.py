"""A row: one graph at one budget, as solved by us and, if asked, by the rival."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from benchmarks.cp_sat import Question, ask
from remat_solver.errors import InfeasibleBudget, NoPlanInTime
from remat_solver.graph import Graph
from remat_solver.options import Progress as SolveProgress
from remat_solver.options import SolveOptions
from remat_solver.simulate import simulate, store_all_schedule
from remat_solver.solve import solve


@dataclass(frozen=True, kw_only=True)
class Row:
    """One graph at one budget. Fractions are of the store-all time; None where there is no plan.

    What begins with `cp_sat` is the rival's answer (`benchmarks.moccasin`), if it was asked. `cpu_s` (of the solve) and
    `peak_rss_bytes` (at most) are those of the solving process and its engine together; None and 0 if not measured.
    """

    graph: str
    ops: int
    budget_fraction: float
    budget_bytes: int
    status: str
    overhead: float | None
    bound_overhead: float | None
    gap: float | None
    solve_s: float
    engine: str
    proof_scope: str = ""
    rounds: int = 0
    slots: int = 0
    reordered_peak_fraction: float | None = None
    budget_name: str = ""
    first_plan_s: float | None = None
    cpu_s: float | None = None
    peak_rss_bytes: int = 0
    cp_sat_status: str = ""
    cp_sat_overhead: float | None = None
    cp_sat_bound_overhead: float | None = None
    cp_sat_s: float | None = None


def measure_row(graph: Graph, budget_fraction: float, options: SolveOptions) -> Row:
    """Solves `graph` at the fraction of its store-all peak, which is the given order's; every ending is a row."""
    budget_bytes = options.budget_in_bytes(simulate(graph, store_all_schedule(graph)).peak_bytes) or 0
    start = time.perf_counter()
    known: dict[str, object] = {"graph": graph.name, "ops": len(graph), "budget_fraction": budget_fraction}
    known |= {"budget_bytes": budget_bytes, "engine": options.engine}
    first_plan_s: list[float] = []

    def watch(progress: SolveProgress) -> None:
        if progress.incumbent_ns is not None and not first_plan_s:
            first_plan_s.append(round(progress.elapsed_s, 3))

    try:
        plan = solve(graph, options, on_progress=watch)
    except (InfeasibleBudget, NoPlanInTime) as error:
        status = "infeasible" if isinstance(error, InfeasibleBudget) else "no_plan_in_time"
        scope = error.fields.get("proof_scope") or ""
        ending = {"status": status, "overhead": None, "bound_overhead": None, "gap": None, "proof_scope": scope}
    else:
        ending = {"status": plan.status, "overhead": plan.overhead, "bound_overhead": plan.bound_overhead}
        ending |= {"gap": plan.gap, "proof_scope": plan.proof_scope}
        if plan.is_reordered:
            ending |= {"reordered_peak_fraction": plan.provenance.reordered_peak_bytes / plan.store_all_peak_bytes}
        ending |= {"rounds": plan.provenance.rounds, "slots": plan.provenance.slots}
    solve_s = round(time.perf_counter() - start, 4)
    if not first_plan_s and ending["overhead"] is not None:
        first_plan_s.append(solve_s)
    known |= {"first_plan_s": first_plan_s[0] if first_plan_s else None}
    return Row(**known, **ending, solve_s=solve_s)  # type: ignore[arg-type]


def ask_cp_sat(row: Row, graph: Graph, *, limit_s: float, workers: int) -> Row:
    """The row with the rival's answer beside ours."""
    question = Question(graph=graph, budget_bytes=row.budget_bytes, time_limit_s=limit_s, workers=workers)
    answer = ask([question])[0]
    times = [None if ns is None else ns / graph.total_time_ns - 1 for ns in (answer.time_ns, answer.bound_ns)]
    return dataclasses.replace(
        row,
        cp_sat_status=answer.status,
        cp_sat_overhead=times[0],
        cp_sat_bound_overhead=times[1],
        cp_sat_s=answer.seconds,
    )


def contradicts(row: Row) -> bool:
    """Whether the rival found a schedule where ours proved that none exists, or that none is as fast."""
    if row.cp_sat_overhead is None or row.proof_scope not in ("order", "checkmate"):
        return False
    return row.bound_overhead is None or row.cp_sat_overhead < row.bound_overhead - 1e-9
