"""Commands on graph and plan files; they need no torch: solve, frontier, report."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from remat.cli.console import out, plan_table, watch_solve
from remat.client import Client
from remat.page import PlannedModel, render_page
from remat.trade_off import frontier_page, price
from remat_solver.bounds import working_set_bound
from remat_solver.budget import format_bytes, parse_budget
from remat_solver.errors import InvalidRequest
from remat_solver.files import load, save, write_whole
from remat_solver.graph import Graph
from remat_solver.module_budgets import read_module_budgets, solve_within
from remat_solver.options import ENGINES, STRATEGIES, SolveOptions
from remat_solver.plan import Plan, confirm_plan
from remat_solver.solve import frontier as solve_frontier
from remat_solver.solve import solve as solve_here

GraphFile = Annotated[Path, typer.Argument(help="A graph file (.json or .json.zst), as `remat capture` writes it.")]
Budget = Annotated[
    str | None, typer.Option(help='Highest allowed peak: "8GiB", "500MB", or a share of the store-all peak: "60%".')
]
MaxOverhead = Annotated[
    str | None, typer.Option(help='Ask for the least memory instead: at most this much more time, as in "10%".')
]
Endpoint = Annotated[str | None, typer.Option(help="A solver service to ask, as in http://solver:8417. Default: here.")]
ApiKey = Annotated[str | None, typer.Option(envvar="REMAT_API_KEY", help="The key for that service.")]
TimeLimit = Annotated[float, typer.Option(help="Seconds after which the best plan so far is returned.")]
Gap = Annotated[float, typer.Option(help="Stop once the plan is proven within this share of the store-all time.")]
Threads = Annotated[int, typer.Option(help="Engine threads.")]
Html = Annotated[Path | None, typer.Option(help="Also write a page with charts to this file.")]

PRICED_POINTS = 8


def solve(
    graph_file: GraphFile,
    budget: Budget = None,
    max_overhead: MaxOverhead = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan here.")] = None,
    endpoint: Endpoint = None,
    api_key: ApiKey = None,
    time_limit: TimeLimit = 60.0,
    gap: Gap = 1e-3,
    threads: Threads = 1,
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = "memory_cuts",
    engine: Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")] = "cbc",
    keep: Annotated[list[str] | None, typer.Option(help="Ops (name pattern) never to recompute. Repeatable.")] = None,
    recompute: Annotated[
        list[str] | None, typer.Option(help="Ops (name pattern) whose values must not be kept for the backward.")
    ] = None,
    module_budget: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=BYTES: what a module may hold for the backward, as in encoder=2GiB. Repeatable."),
    ] = None,
    reorder: Annotated[
        bool, typer.Option("--reorder", help="Look for another order of the ops first. `remat.compile` follows none.")
    ] = False,
    html: Html = None,
) -> None:
    """Find the fastest plan that fits a budget (or the smallest one within a time allowance).

    Example: remat solve gpt.json.zst --budget 60% -o plan.json
    """
    graph = load(Graph, graph_file)
    target = _target(budget, max_overhead)
    options = SolveOptions(
        budget_bytes=target.budget_bytes,
        budget_fraction=target.budget_fraction,
        max_overhead=target.max_overhead,
        gap=gap,
        time_limit_s=time_limit,
        threads=threads,
        strategy=strategy,
        engine=engine,
        keep=tuple(keep or ()),
        recompute=tuple(recompute or ()),
        reorder=reorder,
    )
    budgets = _module_budgets(module_budget or [])
    with ExitStack() as stack:
        planner = stack.enter_context(Client(endpoint, api_key=api_key)).solve if endpoint else solve_here
        watch = stack.enter_context(watch_solve(graph.total_time_ns))
        ask = partial(planner, on_progress=watch.on_progress, should_stop=watch.should_stop)
        plan = solve_within(graph, options, budgets, ask) if budgets else ask(graph, options)
    out.print(plan_table([(graph.name or graph_file.name, plan)]))
    _print_order(plan)
    if output:
        save(plan, output)
        out.print(f"plan written to {output}")
    if html:
        _write_page(html, [PlannedModel(title=graph.name or graph_file.name, graph=graph, plans=(plan,))])


def frontier(
    graph_file: GraphFile,
    points: Annotated[int, typer.Option(min=2, max=200, help="How many budgets.")] = 12,
    time_limit: TimeLimit = 60.0,
    gap: Gap = 1e-3,
    engine: Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")] = "cbc",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the points here.")] = None,
    html: Html = None,
) -> None:
    """What each peak costs: plans from the least feasible budget to the store-all peak.

    Example: remat frontier gpt.json.zst --html frontier.html
    """
    graph = load(Graph, graph_file)
    with watch_solve(graph.total_time_ns) as watch:
        plans = solve_frontier(
            graph,
            points=points,
            time_limit_s=time_limit,
            gap=gap,
            engine=engine,
            on_progress=watch.on_progress,
            should_stop=watch.should_stop,
        )
    out.print(plan_table([(f"{plan.peak_bytes / plan.store_all_peak_bytes:.0%}", plan) for plan in plans]))
    if json_file:
        points_list = [
            {"peak_bytes": plan.peak_bytes, "overhead": plan.overhead, "bound_overhead": plan.bound_overhead}
            for plan in plans
        ]
        write_whole(json_file, json.dumps({"points": points_list}, indent=1).encode())
        out.print(f"points written to {json_file}")
    if html:
        write_whole(html, frontier_page(graph, plans, title=graph.name or graph_file.name).encode())
        out.print(f"page written to {html}")


def report(
    graph_file: GraphFile,
    plan_file: Annotated[Path, typer.Argument(help="A plan file made for that graph.")],
    html: Html = None,
    gpu_hour: Annotated[
        float | None, typer.Option(help="The price of this GPU for an hour: also print what memory costs in money.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="How many training steps to price.")] = 1000,
    time_limit: Annotated[float, typer.Option(help="Seconds for the plans that are priced.")] = 20.0,
) -> None:
    """Check a plan against its graph and show what it keeps, recomputes and costs.

    Example: remat report gpt.json.zst plan.json --html plan.html --gpu-hour 2.5
    """
    graph = load(Graph, graph_file)
    plan = load(Plan, plan_file)
    replay = confirm_plan(graph, plan)
    out.print(plan_table([(graph.name or graph_file.name, plan)]))
    peak_op = graph.ops[plan.schedule[replay.peak_step]].name
    out.print(f"The referee confirms it: peak {format_bytes(replay.peak_bytes)}, reached while {peak_op} runs.")
    _print_order(plan)
    out.print(f"No budget below {format_bytes(working_set_bound(graph))} can have a plan (working-set bound).")
    if gpu_hour is not None:
        _print_prices(graph, plan, gpu_hour, steps, time_limit)
    if html:
        _write_page(html, [PlannedModel(title=graph.name or graph_file.name, graph=graph, plans=(plan,))])


def _print_order(plan: Plan) -> None:
    """What another order of the ops does by itself; nothing for a plan that keeps the graph's."""
    if plan.is_reordered:
        own, other = format_bytes(plan.store_all_peak_bytes), format_bytes(plan.provenance.reordered_peak_bytes)
        out.print(f"Ops run in another order, which takes the peak without recomputation from {own} to {other}.")


def _print_prices(graph: Graph, plan: Plan, gpu_hour: float, steps: int, time_limit_s: float) -> None:
    """Less memory means longer steps; and a smaller GPU pays off only below a certain price."""
    with watch_solve(graph.total_time_ns, "pricing other budgets") as watch:
        others = solve_frontier(
            graph,
            points=PRICED_POINTS,
            time_limit_s=time_limit_s,
            gap=1e-2,
            on_progress=watch.on_progress,
            should_stop=watch.should_stop,
        )
    labelled = sorted([("this plan", plan), *(("", other) for other in others)], key=lambda pair: -pair[1].peak_bytes)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for head in ("memory", "step", "overhead", f"{steps:,} steps", "a GPU that small pays off below"):
        table.add_column(head, justify="right")
    for (label, _), priced in zip(
        labelled, price([other for _, other in labelled], gpu_hour=gpu_hour, steps=steps), strict=True
    ):
        table.add_row(
            label,
            format_bytes(priced.peak_bytes),
            f"{priced.time_ns / 1e6:,.1f} ms",
            f"{priced.overhead:.1%}",
            f"{priced.cost:,.4g}",
            f"{priced.break_even_per_hour:,.3g} an hour",
        )
    out.print(f"\nForward and backward at {gpu_hour:g} an hour, times as on {graph.device or 'the measured device'}:")
    out.print(table)


def _target(budget: str | None, max_overhead: str | None) -> SolveOptions:
    """What --budget or --max-overhead asks for, exactly one of which must be given."""
    if (budget is None) == (max_overhead is None):
        raise InvalidRequest(
            "give either --budget or --max-overhead.", hint="For example --budget 60% or --max-overhead 10%."
        )
    if max_overhead is not None:
        return SolveOptions(max_overhead=_fraction(max_overhead))
    assert budget is not None
    parsed = parse_budget(budget)
    return SolveOptions(budget_bytes=parsed.budget_bytes, budget_fraction=parsed.budget_fraction)


def _module_budgets(texts: list[str]) -> dict[str, int]:
    pairs = [text.rpartition("=") for text in texts]
    for (pattern, _, amount), text in zip(pairs, texts, strict=True):
        if not pattern or not amount:
            raise InvalidRequest(
                f"{text!r} is not of the form PATTERN=BYTES.", hint="For example encoder=2GiB.", field="module_budget"
            )
    return read_module_budgets({pattern: amount for pattern, _, amount in pairs})


def _fraction(text: str) -> float:
    """ "10%" or "0.1" as 0.1."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InvalidRequest(f"can't read the overhead {text!r}.", hint='Write "10%" or 0.1.') from None


def _write_page(path: Path, models: list[PlannedModel]) -> None:
    write_whole(path, render_page(f"Remat: {models[0].title}", models).encode())
    out.print(f"page written to {path}")
