"""What is asked of a solve, what it reports on the way, and the key under which its answer is known."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from dataclasses import dataclass

from remat_solver.budget import Budget
from remat_solver.errors import InvalidRequest
from remat_solver.graph import Graph

STRATEGIES = (
    "memory_cuts",
    "checkmate",
    "lp_rounding",
    "chen_sqrt",
    "chen_greedy",
    "store_all",
    "recompute_all",
)
ENGINES = ("cbc", "highs", "auto")
MAX_TIME_LIMIT_S = 24 * 3600.0
MAX_THREADS = 256


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """A question to the planner. Exactly one of the first three is set.

    `budget_bytes`: the highest allowed peak, everything included; `budget_fraction`: the same as a
    share of the store-all peak. Either asks for the least time. `max_overhead` (0.1 is 10% more time
    than store-all) asks for the least peak.
    `gap`: stop once (time - bound) / store-all time is at most this. `time_limit_s`: stop then.
    `keep` and `recompute` are shell-style patterns of op names, or of the modules that the names start with
    ("blocks.3" is every op below it): ops that must never be recomputed, and ops whose values must not live across
    the forward-backward boundary.
    `reorder`: look for another order of the ops first, with a lower peak without any recomputation. Ops that draw
    random numbers or have effects stay in order. For a budget only; the exact runtime follows no such plan.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    budget_bytes: int | None = None
    budget_fraction: float | None = None
    max_overhead: float | None = None
    gap: float = 1e-3
    time_limit_s: float = 60.0
    threads: int = 1
    strategy: str = "memory_cuts"
    engine: str = "cbc"
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    reorder: bool = False

    def __post_init__(self) -> None:
        objectives = [self.budget_bytes, self.budget_fraction, self.max_overhead]
        if sum(objective is not None for objective in objectives) != 1:
            raise InvalidRequest(
                "a solve needs exactly one of budget_bytes, budget_fraction and max_overhead.",
                hint="A budget asks for the least time, max_overhead for the least memory.",
                field="budget_bytes",
            )
        if self.max_overhead is None:
            Budget(budget_bytes=self.budget_bytes, budget_fraction=self.budget_fraction)
        else:
            _check_range("max_overhead", self.max_overhead, 0, 1000)
        _check_range("gap", self.gap, 0, 10)
        _check_range("time_limit_s", self.time_limit_s, 0, MAX_TIME_LIMIT_S)
        _check_range("threads", self.threads, 1, MAX_THREADS)
        _check_choice("strategy", self.strategy, STRATEGIES)
        _check_choice("engine", self.engine, ENGINES)
        if self.reorder:
            self._check_reorder()

    def _check_reorder(self) -> None:
        if self.max_overhead is not None:
            raise InvalidRequest(
                "reorder needs a budget, and max_overhead asks for the least memory instead.",
                hint="Give budget_bytes or budget_fraction, or leave reorder out.",
                field="reorder",
            )
        if self.recompute:
            raise InvalidRequest(
                "reorder and recompute pins can't go together: a pin is about a boundary of the graph's own order.",
                hint="Leave one of them out.",
                field="reorder",
            )

    def refuse_reorder(self, what: str) -> None:
        """Raises `InvalidRequest` if this asks for another order; `what` plans for the graph's own only."""
        if self.reorder:
            raise InvalidRequest(f"{what} keeps the graph's order.", hint="Leave reorder out.", field="reorder")

    def budget_in_bytes(self, store_all_peak_bytes: int) -> int | None:
        """The budget for a graph with this store-all peak; None when the objective is memory."""
        if self.max_overhead is not None:
            return None
        budget = Budget(budget_bytes=self.budget_bytes, budget_fraction=self.budget_fraction)
        return budget.in_bytes(store_all_peak_bytes)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a solve stands. Times are those of whole plans; None until there is one."""

    elapsed_s: float
    bound_ns: int
    incumbent_ns: int | None = None
    gap: float | None = None
    slots: int = 0
    stage: str = ""


def matching_ops(graph: Graph, patterns: tuple[str, ...]) -> frozenset[int]:
    """The ops whose names, or whose modules' paths, match any of the shell-style patterns.

    A pattern that matches none is an error.
    """
    found: set[int] = set()
    for pattern in patterns:
        ops = {index for index, op in enumerate(graph.ops) if _matches(op.name, pattern)}
        if not ops:
            raise InvalidRequest(
                f"no op's name matches {pattern!r}.",
                hint=f"Names look like {graph.ops[0].name!r}; a module's path will do, and `*` and `?` are wildcards.",
                field="pins",
            )
        found |= ops
    return frozenset(found)


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")


def plan_key(graph: Graph, options: SolveOptions, *, store_all_peak_bytes: int) -> str:
    """sha256 (hex) of the question: equal keys mean interchangeable answers.

    Names, threads and the like stay out; the budget enters in bytes and pins as op indices, so that
    equal questions asked differently share one answer. Client and server compute the same key, which
    golden vectors in the tests pin.
    """
    question = {
        "graph": graph.hash,
        "budget_bytes": options.budget_in_bytes(store_all_peak_bytes),
        "max_overhead": _fixed_point(options.max_overhead),
        "gap": _fixed_point(options.gap),
        "time_limit_ms": round(options.time_limit_s * 1000),
        "strategy": options.strategy,
        "engine": options.engine,
        "keep": sorted(matching_ops(graph, options.keep)),
        "recompute": sorted(matching_ops(graph, options.recompute)),
    }
    if options.reorder:
        question["reorder"] = True
    text = json.dumps(question, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"remat-plan/1\0" + text.encode()).hexdigest()


def _fixed_point(number: float | None) -> int | None:
    """Millionths, so that no float formatting enters a key."""
    return None if number is None else round(number * 1_000_000)


def _check_range(field: str, number: float, low: float, high: float) -> None:
    if isinstance(number, bool) or not math.isfinite(number) or not low <= number <= high:
        raise InvalidRequest(f"{field} is {number}, outside {low} to {high:g}.", field=field)


def _check_choice(field: str, choice: str, choices: tuple[str, ...]) -> None:
    if choice not in choices:
        raise InvalidRequest(
            f"{field} {choice!r} is unknown.", hint=f"Choose one of {', '.join(choices)}.", field=field
        )
