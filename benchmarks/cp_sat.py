"""Asks the rival's model (`benchmarks.moccasin`) in a process of its own.

Both ortools and highspy (which PuLP loads) bring a libhighs.so.1. In one process the later one fails to load, or takes
the other's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from remat_solver.errors import EngineFailed, EngineMissing
from remat_solver.files import dump_json
from remat_solver.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Question:
    """The least time within `budget_bytes`, each op at most `runs` times; solved for `time_limit_s` by `workers`."""

    graph: Graph
    budget_bytes: int
    runs: int = 2
    time_limit_s: float = 60.0
    workers: int = 2


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a solve ended: "optimal", "feasible", "infeasible" or "no_plan_in_time". Its schedule is refereed.

    `bound_ns` bounds the time of every schedule of the class from below; None where it is infeasible.
    """

    status: str
    schedule: tuple[int, ...] | None
    time_ns: int | None
    bound_ns: int | None
    seconds: float


def ask(questions: Sequence[Question]) -> list[Answer]:
    """The answers, in order; raises `EngineMissing` without ortools, and `EngineFailed` if the process fails."""
    lines = [
        json.dumps({**asdict(question), "graph": dump_json(question.graph).decode()}, separators=(",", ":"))
        for question in questions
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.moccasin"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    if "No module named 'ortools'" in ended.stderr:
        raise EngineMissing("CP-SAT is not installed.", hint='Install it: pip install "remat[benchmarks]".')
    if ended.returncode:
        raise EngineFailed(f"CP-SAT's process failed: {ended.stderr.strip()[-500:]}", hint="Is memory short?")
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    return [Answer(**{**answer, "schedule": answer["schedule"] and tuple(answer["schedule"])}) for answer in answers]
