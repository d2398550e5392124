"""A question to the service: a stored graph, options, and the keys under which answers are shared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from remat_api.stored_graph import StoredGraph
from remat_solver.options import SolveOptions, matching_ops, plan_key


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of one graph.

    `key` names exactly this question. `family` names all questions that differ only in budget, gap,
    time limit and threads: within a family, a proven answer to one can answer another. A question that may be answered
    in another order has no family but itself: what is proven in one order says nothing about the next.
    `budget_bytes` is None when the objective is memory. `points`: how many plans a frontier asks for; None asks
    for one plan.
    """

    stored: StoredGraph
    options: SolveOptions
    key: str
    family: str
    budget_bytes: int | None
    points: int | None = None


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How a question is asked, which has no part in its answer.

    `tags`: labels to find the solve by. `priority`: higher goes first. `queue_timeout_s`: the solve fails if no
    worker has taken it up by then; None waits for as long as it takes.
    """

    tags: tuple[str, ...] = ()
    priority: int = 0
    queue_timeout_s: float | None = None


def pose(stored: StoredGraph, options: SolveOptions) -> Question:
    """Raises `InvalidRequest` for a pin that matches no op."""
    key = plan_key(stored.graph, options, store_all_peak_bytes=stored.store_all_peak_bytes)
    return Question(
        stored=stored,
        options=options,
        key=key,
        family=key if options.reorder else _family(stored, options),
        budget_bytes=options.budget_in_bytes(stored.store_all_peak_bytes),
    )


def pose_frontier(stored: StoredGraph, options: SolveOptions, points: int) -> Question:
    """The question for plans over the whole range of budgets. Raises `InvalidRequest` for a pin without an op."""
    family = _family(stored, options)
    limits = [points, round(options.gap * 1_000_000), round(options.time_limit_s * 1000)]
    text = json.dumps([family, *limits])
    key = hashlib.sha256(b"remat-frontier/1\0" + text.encode()).hexdigest()
    return Question(stored=stored, options=options, key=key, family=family, budget_bytes=None, points=points)


def _family(stored: StoredGraph, options: SolveOptions) -> str:
    """The engine belongs to it: a proof is as good as the engine that made it, and the asker chose one."""
    question = {
        "graph": stored.graph.hash,
        "strategy": options.strategy,
        "engine": options.engine,
        "keep": sorted(matching_ops(stored.graph, options.keep)),
        "recompute": sorted(matching_ops(stored.graph, options.recompute)),
        "max_overhead": options.max_overhead,
    }
    text = json.dumps(question, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"remat-family/1\0" + text.encode()).hexdigest()
