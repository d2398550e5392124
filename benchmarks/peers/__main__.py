"""python -m benchmarks.peers: what PyTorch offers today and what a plan does, side by side.

Every network gets a process of its own, in which all contenders run the same step on the same batch: the unmodified
model, `torch.utils.checkpoint` around blocks, selective checkpointing, `activation_memory_budget` at each setting,
and plans for the same peaks. With `--compiled` all of it under Inductor: `torch.compile` by itself, the same with
`activation_memory_budget`, and inductor mode. Rounds are interleaved in a random order; ratios are to the plain run
of the same round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.peers import tables
from benchmarks.peers.comparison import Comparison, Row, compare_named
from benchmarks.peers.compiled import compare_compiled_named
from benchmarks.peers.contenders import FAMILIES
from benchmarks.peers.measuring import Ratio
from benchmarks.peers.networks import NETWORKS


def main() -> int:
    """The command. It prints what did not hold, and leaves the judgement of noise to the reader."""
    arguments = _parse_arguments()
    targets = tuple(float(target) for target in arguments.targets.split(","))
    families = tuple(arguments.families.split(","))
    comparisons = []
    for name in arguments.networks.split(","):
        # A process each: compilers and allocators start afresh.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            if arguments.compiled:
                job = pool.submit(compare_compiled_named, name, targets, arguments.rounds)
            else:
                job = pool.submit(compare_named, name, families, targets, arguments.rounds, arguments.time_limit)
            comparisons.append(job.result())
        if arguments.json:
            _write(arguments.json, comparisons)
    _print_tables(comparisons)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="which, comma-separated")
    parser.add_argument("--families", default=",".join(FAMILIES), help="which contenders, beside the plain run")
    parser.add_argument("--compiled", action="store_true", help="the second class: all contenders under Inductor")
    parser.add_argument("--targets", default="0.8,0.6,0.5,0.4", help="shares of the plain run's measured peak")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each solve")
    parser.add_argument("--json", type=Path, help="write the rows here; what else is in it stays")
    parser.add_argument("--print", type=Path, help="only print the tables of this file")
    arguments = parser.parse_args()
    if arguments.print:
        _print_tables([_read_comparison(item) for item in json.loads(arguments.print.read_text())["comparisons"]])
        sys.exit(0)
    for given, known in ((arguments.networks, NETWORKS), (arguments.families, FAMILIES)):
        unknown = sorted(set(given.split(",")) - set(known))
        if unknown:
            parser.error(f"{unknown[0]!r} is none of {', '.join(known)}")
    return arguments


def _write(path: Path, comparisons: list[Comparison]) -> None:
    known = json.loads(path.read_text())["comparisons"] if path.exists() else []
    fresh = {(comparison.network, comparison.families) for comparison in comparisons}
    others = [item for item in known if (item["network"], tuple(item["families"])) not in fresh]
    rows = others + [asdict(item) for item in comparisons]
    rows.sort(key=lambda item: list(NETWORKS).index(item["network"]))
    machine = {**describe_machine(), "torch": torch.__version__, "threads": "1"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "comparisons": rows}, indent=1) + "\n")


def _read_comparison(item: dict[str, Any]) -> Comparison:
    rows = []
    for row in item["rows"]:
        ratios = {key: Ratio(**row[key]) if row[key] else None for key in ("wall", "cpu", "to_store_all")}
        rows.append(Row(**{**row, **ratios}))
    lists = {name: tuple(item[name]) for name in ("families", "targets")}
    return Comparison(**{**item, **lists, "rows": tuple(rows)})


def _print_tables(parts: list[Comparison]) -> None:
    for contest in (tables.OP_BY_OP, tables.COMPILED):
        members = [part for part in parts if tables.class_of(part) is contest]
        if members:
            _print_class(contest, tables.merged(members))


def _print_class(contest: tables.Class, comparisons: list[Comparison]) -> None:
    out = sys.stdout
    out.write(f"\nThe plain run is {contest.plain}.\n")
    out.write(
        "\nThe fastest setting of each family within a peak: CPU time over the plain run's (wall), peak reached.\n\n"
    )
    out.write(tables.as_markdown(contest.target_head, tables.by_target(comparisons)) + "\n")
    out.write("\nEach peer with right gradients, and the plan for its measured peak.\n\n")
    out.write(tables.as_markdown(tables.PEER_HEAD, tables.by_peer(comparisons)) + "\n")
    out.write("\nEvery contender that was timed, with 95% intervals.\n\n")
    out.write(tables.as_markdown(tables.ROW_HEAD, tables.all_rows(comparisons)) + "\n\n")
    out.write("Measured beside predicted overhead of our plans, over the plan without recomputation.\n\n")
    out.write(tables.as_markdown(tables.OVERHEAD_HEAD, tables.overheads(comparisons)) + "\n\n")
    for comparison in comparisons:
        out.write(
            f"{comparison.network}: {comparison.started}, {comparison.rounds} rounds, {comparison.cores} core(s), "
            f"load {comparison.load:.1f}\n"
        )
        for setting, reason in comparison.unplanned.items():
            out.write(f"{comparison.network}, no plan {setting}: {reason}\n")
    broken = tables.broken_claims(comparisons)
    out.write("\n".join(broken or ["Every claim held."]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
