"""Attempts to prove that nothing fits, each deeper than the one before.

All schedules followed back together from their end prove most (`backward_walk`), as long as they want few values at
once. That is so more often if only large values count (`views`), and what has no place even then has none.
Single ops traced back (`trace_back`) prove what can be seen at one place of a graph whose other places are roomy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from remat_solver.bounds import tightest_first
from remat_solver.formulation.lifetimes import Lifetimes, only_large
from remat_solver.strategies.backward_walk import Judge
from remat_solver.strategies.base import Task
from remat_solver.strategies.trace_back import TraceBack

_MOST_OPS = 64
"""Only so many of the ops that need the most memory are traced, the first of them deepest."""
_FIRST_NODES = 30
_GROWTH = 4
_WALK_SHARE = 0.6
"""Of an attempt's time at most."""
_RESOLUTIONS = (0.05, 0.03, 0.02, 0.01)
"""Values count as large from this share of the budget on."""
_TURN = 100_000
"""Steps on the coarsest view before the next gets its turn, which is half as long, and so on to the graph itself."""
_WHOLE_TURN = 50_000
"""Steps on the graph itself before that."""


def views(lifetimes: Lifetimes, budget_bytes: int) -> list[Lifetimes]:
    """Coarser views of the graph, the coarsest first; those that differ and leave anything out."""
    found = [lifetimes]
    for share in reversed(_RESOLUTIONS):
        view = only_large(lifetimes, share * budget_bytes)
        if view.is_lasting != found[-1].is_lasting:
            found.append(view)
    return found[:0:-1]


class Refutation:
    """Keeps its place between attempts."""

    def __init__(self, task: Task, lifetimes: Lifetimes) -> None:
        self.task = task
        self.lifetimes = lifetimes
        self.turns = self._take_turns()
        self.is_hopeless = False
        """Whether it is known that there is nothing to prove."""
        self.trace_back = TraceBack(task.graph)
        self.questions = self._deeper_and_deeper()
        self.stop_s = 0.0

    def attempt(self, seconds: float) -> None:
        """Goes on for so long; raises `InfeasibleBudget` with proof scope "order" if nothing fits the budget."""
        start_s = time.monotonic()
        budget = self.task.budget_bytes
        self.stop_s = start_s + _WALK_SHARE * seconds
        if not self.is_hopeless:
            self._walk()
        if self.is_hopeless:
            return
        self.stop_s = start_s + seconds
        for op, node_limit in self.questions:
            bound = self._bound_bytes(op, node_limit, enough=budget)
            if bound > budget:
                # Not less than what was asked: the answer names the budgets that are out of the question.
                below = self._bound_bytes(op, node_limit, at_least=bound)
                raise self.task.infeasible(proof_scope="order", below_bytes=below)
            if self._is_over():
                return

    def _walk(self) -> None:
        """Walks back on one view after the other, in turns, until one is refuted or the graph itself can't be."""
        while not self.is_hopeless and not self._is_over():
            judge, effort = next(self.turns)
            verdict = judge.judge(effort=effort, should_stop=self._is_over)
            if verdict is not None and verdict.needed_bytes is not None:
                needed = self._raise(judge, verdict.needed_bytes)
                raise self.task.infeasible(proof_scope="order", below_bytes=needed)
            self.is_hopeless = verdict is not None and judge.lifetimes is self.lifetimes

    def _take_turns(self) -> Iterator[tuple[Judge, int]]:
        """Who walks back next, and for how many steps: on the graph itself, and on coarser views of it."""
        budget = self.task.budget_bytes
        whole = Judge(self.lifetimes, budget)
        yield whole, _WHOLE_TURN
        judges = [*(Judge(view, budget) for view in views(self.lifetimes, budget)), whole]
        while True:
            unsettled = [judge for judge in judges if judge.verdict is None]
            yield from ((judge, _TURN >> rank) for rank, judge in enumerate(unsettled))

    def _raise(self, judge: Judge, needed_bytes: int) -> int:
        """More bytes that every schedule needs, as long as no proof takes longer than the first."""
        while True:
            more = Judge(judge.lifetimes, needed_bytes).judge(effort=judge.steps, should_stop=self._is_over)
            if more is None or more.needed_bytes is None:
                return needed_bytes
            needed_bytes = more.needed_bytes

    def _bound_bytes(self, op: int, node_limit: int, *, at_least: int = 0, enough: int | None = None) -> int:
        return self.trace_back.bound_bytes(
            op,
            at_least=max(at_least, self.task.budget_bytes),
            enough=enough,
            node_limit=node_limit,
            should_stop=self._is_over,
        )

    def _deeper_and_deeper(self) -> Iterator[tuple[int, int]]:
        tightest = tightest_first(self.task.graph)[:_MOST_OPS]
        node_limit = _FIRST_NODES
        while True:
            for rank, op in enumerate(tightest):
                if node_limit >= _FIRST_NODES * rank:
                    yield op, max(_FIRST_NODES, node_limit // (rank + 1))
            node_limit *= _GROWTH

    def _is_over(self) -> bool:
        return time.monotonic() >= self.stop_s or self.task.is_over()
