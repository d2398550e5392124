"""python -m benchmarks.zoo.check NAME: one architecture, trained several ways and compared bit for bit.

Eager, `torch.compile(backend="aot_eager")`, and ours under two budgets: 60% of the store-all peak, and 1.1 times the
working-set bound, below which nothing fits. Prints one JSON row.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version

import torch
from torch import Tensor, nn

import remat
from benchmarks.zoo.architecture import Architecture, Batch, seeded_model
from benchmarks.zoo.catalogue import find
from benchmarks.zoo.row import Cause, Planned, Row
from benchmarks.zoo.training import Training, differences, seeded_batch, train
from remat.torch.attachment import eager_plans, pieces_plans
from remat.torch.eager.plan import EagerPlan
from remat.torch.joint_capture import compiled_call, traced_backend
from remat.torch.pieces.plan import PiecesPlan
from remat_solver.bounds import working_set_bound
from remat_solver.errors import GraphBreak, InfeasibleBudget, NoPlanInTime, RematError
from remat_solver.graph import Graph
from remat_solver.plan import Plan
from remat_solver.simulate import simulate, store_all_schedule

SHARE = 0.6
BOUND_MULTIPLE = 1.1
SHARES = (0.6, 0.7, 0.8, 0.9)
SOLVE_LIMIT_S = 8.0
GAP = 0.05


def check(architecture: Architecture) -> Row:
    """Trains the architecture every way."""
    row = Row(name=architecture.name, package=architecture.package, kind=architecture.kind)
    eager = _train_eager(architecture, row)
    if eager is None:
        return row
    traced = _train_traced(architecture, eager, row)
    graph = _capture(architecture, row)
    if graph is None:
        if row.mode == "several":
            _plan_several(architecture, eager, row)
        return _judged(row)
    for goal, budget_bytes in _goals(graph, row):
        plan = _solve(graph, goal, budget_bytes, row)
        if plan is not None:
            row.plans.append(_train_planned(architecture, graph, plan, goal, eager, traced, row))
    return _judged(row)


def _judged(row: Row) -> Row:
    row.identical = bool(row.plans) and all(planned.identical_to for planned in row.plans)
    row.within_budget = bool(row.plans) and all(p.measured_peak_bytes <= p.budget_bytes for p in row.plans)
    if row.identical:
        row.identical_to = "eager" if all(planned.identical_to == "eager" for planned in row.plans) else "aot_eager"
    return row


def _train_eager(architecture: Architecture, row: Row) -> Training | None:
    """Twice, to know that what differs later is no noise."""
    try:
        first, second = (_trained(architecture, _plain_call) for _ in range(2))
    except Exception as error:
        _say(row, "model", f"eager: {_line(error)}")
        return None
    noisy = differences(first, second)
    if noisy:
        _say(row, "model", f"two eager runs with one seed differ: {noisy[0]}")
        return None
    row.eager_trains = True
    return first


def _train_traced(architecture: Architecture, eager: Training, row: Row) -> Training | None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        traced = _trained(architecture, _traced_call)
    except Exception as error:
        _say(row, "dynamo", f"aot_eager: {_line(error)}")
        return None
    row.aot_eager_trains = True
    row.aot_eager_is_eager = not differences(eager, traced)
    row.aot_eager_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return traced


def _capture(architecture: Architecture, row: Row) -> Graph | None:
    torch._dynamo.reset()
    model = seeded_model(architecture)
    batch = seeded_batch(architecture, 0)
    try:
        graph = remat.measure(remat.capture(remat.Step(model, kwargs=batch, loss_fn=architecture.loss)))
    except GraphBreak as error:
        row.mode = "several"
        _say(row, "dynamo", f"no single graph: {error.reason}, at {_short(error.where)}")
        return None
    except Exception as error:
        _say(row, "us", _line(error))
        return None
    row.mode = "exact"
    row.ops = len(graph)
    row.graphs = 1
    row.store_all_peak_bytes = simulate(graph, store_all_schedule(graph)).peak_bytes
    row.working_set_bytes = working_set_bound(graph)
    return graph


def _goals(graph: Graph, row: Row) -> list[tuple[str, int]]:
    share = ("60%", int(SHARE * row.store_all_peak_bytes))
    least = ("1.1 x bound", int(BOUND_MULTIPLE * row.working_set_bytes))
    if share[1] < row.working_set_bytes:
        _say(
            row, "", f"60% lies below the working set, which is {row.working_set_bytes / row.store_all_peak_bytes:.0%}"
        )
        return [least]
    return [share, least]


def _solve(graph: Graph, goal: str, budget_bytes: int, row: Row) -> Plan | None:
    try:
        return remat.solve(graph, budget_bytes=budget_bytes, time_limit_s=SOLVE_LIMIT_S, gap=GAP)
    except InfeasibleBudget as error:
        _say(row, "budget", f"{goal}: {_line(error)}")
    except NoPlanInTime as error:
        _say(row, "us", f"{goal}: {_line(error)}")
    return None


def _train_planned(
    architecture: Architecture, graph: Graph, plan: Plan, goal: str, eager: Training, traced: Training | None, row: Row
) -> Planned:
    planned = Planned(
        goal=goal, budget_bytes=plan.budget_bytes, recomputes=plan.recompute_count, overhead=plan.overhead
    )
    torch._dynamo.reset()
    model = seeded_model(architecture)
    try:
        remat.apply(model, plan, loss_fn=architecture.loss)
        training = train(architecture, model, lambda batch: model(**batch), peaks=True)
    except Exception as error:
        cause: Cause = "dynamo" if isinstance(error, GraphBreak) else "us"
        _say(row, cause, f"{goal}: {_line(error)}")
        return planned
    records = remat.torch.planned_graphs(model)
    planned.predicted_peak_bytes = records[-1].predicted_peak_bytes
    planned.measured_peak_bytes = records[-1].graph.fixed_bytes + max(training.peaks_above_start)
    if planned.measured_peak_bytes > planned.budget_bytes:
        _say(
            row, "us", f"{goal}: the peak is {planned.measured_peak_bytes - planned.budget_bytes} bytes over the budget"
        )
    difference = differences(eager, training)
    if not difference:
        planned.identical_to = "eager"
    elif traced is not None and not differences(traced, training):
        planned.identical_to = "aot_eager"
        _say(row, "dynamo", f"aot_eager itself differs from eager: {difference[0]} and {len(difference) - 1} more")
    else:
        planned.first_difference = difference[0]
        whose: Cause = "us" if row.aot_eager_is_eager or traced is None else "dynamo"
        _say(row, whose, f"{goal}: differs from eager: {difference[0]} and {len(difference) - 1} more")
    return planned


def _plan_several(architecture: Architecture, eager: Training, row: Row) -> None:
    """What is several graphs, in both modes that take it, each at the smallest of some shares that it reaches."""
    torch._dynamo.reset()
    traced = _trained(architecture, _traced_in_pieces)
    for mode, references in (("pieces", {"eager": eager, "aot_eager": traced}), ("eager", {"eager": eager})):
        try:
            planned = _at_the_least_share(architecture, mode, references)
        except Exception as error:
            _say_of_mode(row, mode, _line(error), is_ours=not isinstance(error, RematError))
            continue
        row.plans.append(planned)
        if not planned.identical_to:
            _say_of_mode(row, mode, f"differs: {planned.first_difference}", is_ours=True)
        over = planned.measured_peak_bytes - planned.budget_bytes
        if over > 0:
            _say_of_mode(row, mode, f"{over} bytes over the budget", is_ours=True)


def _say_of_mode(row: Row, mode: str, reason: str, *, is_ours: bool) -> None:
    """Puts it before the reason why the model is several graphs, which is known already."""
    row.reason = f"{mode} mode: {reason}; {row.reason}"
    if is_ours:
        row.cause = "us"


def _at_the_least_share(architecture: Architecture, mode: str, references: dict[str, Training]) -> Planned:
    """Raises the last refusal if no share is reached."""
    for share in SHARES:
        torch._dynamo.reset()
        model = seeded_model(architecture)
        try:
            remat.compile(
                model, budget=f"{share:.0%}", mode=mode, loss_fn=architecture.loss, time_limit_s=SOLVE_LIMIT_S
            )
            training = train(architecture, model, lambda batch, model=model: model(**batch), peaks=True)
            break
        except (InfeasibleBudget, NoPlanInTime):
            if share == SHARES[-1]:
                raise
    plan = (eager_plans(model) or pieces_plans(model))[-1]
    first, *later = training.peaks_above_start  # only after the first is it seen that what was kept is freed
    different = {name: differences(reference, training) for name, reference in references.items()}
    return Planned(
        goal=f"{mode} mode, {share:.0%}",
        mode=mode,
        budget_bytes=plan.budget_bytes,
        store_all_peak_bytes=plan.store_all_peak_bytes,
        predicted_peak_bytes=plan.predicted_peak_bytes,
        measured_peak_bytes=plan.fixed_bytes + max(first, plan.kept_bytes + max(later)),
        recomputes=_recomputed_parts(plan),
        identical_to=next((name for name, found in different.items() if not found), ""),
        first_difference="; ".join(found[0] for found in different.values() if found),
    )


def _recomputed_parts(plan: EagerPlan | PiecesPlan) -> int:
    """How many regions, or runs of pieces, run again in part or whole."""
    if isinstance(plan, EagerPlan):
        return sum(region is not None for region in plan.regions.values())
    return sum(piece.calls for piece in plan.pieces if piece.recompute_ns)


def _short(where: str) -> str:
    """The place without the folders above its package."""
    return where.rpartition("site-packages/")[2]


def _trained(
    architecture: Architecture, call_of: Callable[[Architecture, nn.Module], Callable[[Batch], Tensor]]
) -> Training:
    model = seeded_model(architecture)
    return train(architecture, model, call_of(architecture, model))


def _plain_call(architecture: Architecture, model: nn.Module) -> Callable[[Batch], Tensor]:
    return lambda batch: architecture.loss(model(**batch))


def _traced_call(architecture: Architecture, model: nn.Module) -> Callable[[Batch], Tensor]:
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    return lambda batch: architecture.loss(compiled(**batch))


def _traced_in_pieces(architecture: Architecture, model: nn.Module) -> Callable[[Batch], Tensor]:
    """Tracing with our settings: without them NumPy's random numbers and upsampling are not eager mode's."""
    compiled = compiled_call(model, traced_backend, architecture.loss, one_graph=False)
    return lambda batch: compiled(**batch)


def _say(row: Row, cause: Cause, reason: str) -> None:
    """Keeps the first failure; a remark without a cause gives way to one."""
    if not row.reason or (cause and not row.cause):
        row.cause, row.reason = cause, reason


def _line(error: BaseException) -> str:
    if os.environ.get("REMAT_ZOO_TRACEBACK"):
        traceback.print_exception(error)
    text = str(error).strip().splitlines()
    name = "" if isinstance(error, RematError) else f"{type(error).__name__}: "
    return f"{name}{text[0] if text else 'no message'}"[:400]


def main() -> int:
    """Prints the row; exit code 0 whatever it says."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.freeze()  # what was imported need not be looked through again and again
    start = time.perf_counter()
    row = check(find(sys.argv[1]))
    row.versions = f"torch {torch.__version__}, {row.package} {version(row.package)}"
    row.seconds = round(time.perf_counter() - start, 1)
    print(json.dumps(asdict(row)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
