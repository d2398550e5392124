"""python -m benchmarks.mechanism: what running a plan really costs, beside eager and PyTorch's own trace.

For each model: eager, `aot_eager`, the store-all plan and a plan for each budget, timed in one process, in a random
order in every round. Ratios are medians over rounds of figures taken in the same round, so that a slow moment of the
machine hits both sides, with a 95% interval (bootstrap). CPU time is free of what other processes take.
Freed memory is kept in the process, for all of them alike. The model "tiny" has ops that take no time: what is left
is the price of calling one.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.networks.steps import STEPS
from benchmarks.peers.measuring import Ratio, ratio
from remat.models import DEMO_STEPS
from remat.torch import Backend, Step, capture
from remat.torch.cost_cache import CostCache
from remat.torch.heap import keep_freed_memory
from remat.torch.joint_capture import compiled_call
from remat.torch.measure import measure
from remat.torch.peak import measure_peak
from remat_solver.graph import Graph
from remat_solver.options import SolveOptions
from remat_solver.plan import Plan
from remat_solver.solve import solve

Clock = dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of running one model. Overheads are shares of the store-all plan's time.

    `cpu_us_per_op` is the least CPU time of a step, divided by the ops of the planned graph.
    """

    model: str
    method: str
    ops: int
    peak_bytes: int
    predicted_peak_bytes: int | None
    wall_to_eager: Ratio
    cpu_to_eager: Ratio
    cpu_to_aot_eager: Ratio
    cpu_us_per_op: float
    measured_overhead: float
    measured_cpu_overhead: float
    predicted_overhead: float | None

    @property
    def error(self) -> float | None:
        """Measured (CPU time) less predicted overhead."""
        return None if self.predicted_overhead is None else self.measured_cpu_overhead - self.predicted_overhead


def bench_model(name: str, step: Step, budgets: list[float], rounds: int, cache: CostCache | None) -> list[Row]:
    """The rows of one model."""
    graph = measure(capture(step), cache=cache)
    plans = {"store-all": solve(graph, SolveOptions(budget_fraction=1.0))}
    plans |= {f"{budget:.0%}": solve(graph, SolveOptions(budget_fraction=budget)) for budget in budgets}
    calls = _calls(step, plans, graph)
    peaks = {method: _peak(step, call) for method, call in calls.items()}
    wall, cpu = _time_interleaved(step, calls, rounds)
    return [
        Row(
            model=name,
            method=method,
            ops=len(graph),
            peak_bytes=graph.fixed_bytes + peaks[method],
            predicted_peak_bytes=plans[method].peak_bytes if method in plans else None,
            wall_to_eager=ratio(wall[method], wall["eager"]),
            cpu_to_eager=ratio(cpu[method], cpu["eager"]),
            cpu_to_aot_eager=ratio(cpu[method], cpu["aot_eager"]),
            cpu_us_per_op=1e6 * min(cpu[method]) / len(graph),
            measured_overhead=ratio(wall[method], wall["store-all"]).median - 1,
            measured_cpu_overhead=ratio(cpu[method], cpu["store-all"]).median - 1,
            predicted_overhead=plans[method].overhead if method in plans else None,
        )
        for method in calls
    ]


def _calls(step: Step, plans: dict[str, Plan], graph: Graph) -> dict[str, Callable[..., Any]]:
    """Every way of running the step, all on the same model; each called once, so that it is compiled."""
    calls: dict[str, Callable[..., Any]] = {
        "eager": lambda *args: step.loss_fn(step.model(*args)) if step.loss_fn else step.model(*args),
        "aot_eager": compiled_call(step.model, torch._dynamo.lookup_backend("aot_eager"), step.loss_fn),
    }
    for method, plan in plans.items():
        backend = Backend(plan=plan, model=step.model, optimizer=step.optimizer, measure=lambda _: graph)
        calls[method] = compiled_call(step.model, backend, step.loss_fn)
    for call in calls.values():
        _run(step, call)
    return calls


def _run(step: Step, call: Callable[..., Any]) -> None:
    step.model.zero_grad(set_to_none=True)
    call(*step.args).backward()


def _peak(step: Step, call: Callable[..., Any]) -> int:
    step.model.zero_grad(set_to_none=True)
    return measure_peak(lambda: call(*step.args).backward(), step.args[0].device).peak_bytes_above_start


def _time_interleaved(step: Step, calls: dict[str, Callable[..., Any]], rounds: int) -> tuple[Clock, Clock]:
    """Seconds of every method in every round: wall, and of this process's CPU."""
    wall: Clock = {method: [] for method in calls}
    cpu: Clock = {method: [] for method in calls}
    shuffle = random.Random(0)
    for _ in range(rounds):
        gc.collect()
        for method in shuffle.sample(list(calls), len(calls)):
            step.model.zero_grad(set_to_none=True)
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            calls[method](*step.args).backward()
            cpu[method].append(time.process_time() - cpu_start)
            wall[method].append(time.perf_counter() - wall_start)
    return wall, cpu


def as_table(rows: list[Row]) -> Table:
    """The rows for people."""
    table = Table(title="The mechanism, measured: forward and backward")
    for heading in ("model", "method", "ops", "peak MB", "predicted", "wall / eager"):
        table.add_column(heading, justify="left" if heading in ("model", "method") else "right")
    for heading in ("CPU / eager", "CPU / aot_eager", "CPU us per op"):
        table.add_column(heading, justify="right")
    for heading in ("overhead %", "(CPU) %", "predicted %", "error (points)"):
        table.add_column(heading, justify="right")
    for row in rows:
        overheads = (row.measured_overhead, row.measured_cpu_overhead, row.predicted_overhead, row.error)
        table.add_row(
            row.model,
            row.method,
            str(row.ops),
            f"{row.peak_bytes / 1e6:.2f}",
            "" if row.predicted_peak_bytes is None else f"{row.predicted_peak_bytes / 1e6:.2f}",
            f"{row.wall_to_eager.median:.3f}",
            _with_interval(row.cpu_to_eager),
            _with_interval(row.cpu_to_aot_eager),
            f"{row.cpu_us_per_op:.1f}",
            *map(_percent, overheads),
        )
    return table


def _with_interval(measured: Ratio) -> str:
    return f"{measured.median:.3f} ({measured.low:.3f} to {measured.high:.3f})"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.2f}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mechanism", description=__doc__)
    parser.add_argument("--models", default=",".join(DEMO_STEPS), help=f"which of {', '.join(STEPS)}")
    parser.add_argument("--budgets", default="0.8,0.6,0.4", help='shares of the store-all peak; "" for no plans')
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="threads that run an op")
    parser.add_argument("--no-cache", action="store_true", help="measure ops anew instead of believing the cost cache")
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    budgets = [float(budget) for budget in arguments.budgets.split(",") if budget]
    rows: list[Row] = []
    for name in arguments.models.split(","):
        cache = None if arguments.no_cache else CostCache()
        rows += bench_model(name, STEPS[name](), budgets, arguments.rounds, cache)
    Console(width=None if sys.stdout.isatty() else 200).print(as_table(rows))
    if arguments.json:
        machine = {**describe_machine(), "torch": torch.__version__, "threads": str(arguments.threads)}
        document = {"machine": machine, "command": sys.argv[1:], "rows": [asdict(row) for row in rows]}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
