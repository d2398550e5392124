"""Attempts to prove that nothing fits, each deeper than the one before.

All schedules followed back together from their end prove most (`backward_walk`), as long as they want few values at
once. That is so more often if only large values count (`large_first.views`), and what has no place even then has none.
Single ops traced back (`trace_back`) prove what can be seen at one place of a graph whose other places are roomy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.strategies.backward_walk import Verdict, judge_budget
from remat_solver.strategies.base import Task
from remat_solver.strategies.large_first import views
from remat_solver.strategies.trace_back import TraceBack

_MOST_OPS = 64
"""Only so many of the ops that need the most memory are traced, the first of them deepest."""
_FIRST_NODES = 30
_GROWTH = 4
_WALK_SHARE = 0.6
"""Of an attempt's time at most."""
_FIRST_WALK = 50_000
"""Steps of a walk over all schedules, the first time."""


class Refutation:
    """Keeps its place between attempts."""

    def __init__(self, task: Task, lifetimes: Lifetimes) -> None:
        self.task = task
        self.lifetimes = lifetimes
        self.walks = deque((view, _FIRST_WALK) for view in (lifetimes, *views(lifetimes, task.budget_bytes)))
        """What to walk back on next, and with how much effort: the graph itself, and coarser views of it."""
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
        """Walks back on one view after the other; those that are too much get another turn after all others."""
        while self.walks and not self.is_hopeless and not self._is_over():
            view, effort = self.walks.popleft()
            verdict = self._judge(view, self.task.budget_bytes, effort)
            needed = verdict.needed_bytes
            if needed is not None:
                more = self._judge(view, needed, effort).needed_bytes
                while more is not None:
                    needed, more = more, self._judge(view, more, effort).needed_bytes
                raise self.task.infeasible(proof_scope="order", below_bytes=needed)
            if not verdict.is_settled:
                self.walks.append((view, effort if self._is_over() else _GROWTH * effort))
            self.is_hopeless = verdict.is_settled and view is self.lifetimes

    def _judge(self, view: Lifetimes, budget_bytes: int, effort: int) -> Verdict:
        return judge_budget(view, budget_bytes, effort=effort, should_stop=self._is_over)

    def _bound_bytes(self, op: int, node_limit: int, *, at_least: int = 0, enough: int | None = None) -> int:
        return self.trace_back.bound_bytes(
            op,
            at_least=max(at_least, self.task.budget_bytes),
            enough=enough,
            node_limit=node_limit,
            should_stop=self._is_over,
        )

    def _deeper_and_deeper(self) -> Iterator[tuple[int, int]]:
        tightest = self.trace_back.tightest_first()[:_MOST_OPS]
        node_limit = _FIRST_NODES
        while True:
            for rank, op in enumerate(tightest):
                if node_limit >= _FIRST_NODES * rank:
                    yield op, max(_FIRST_NODES, node_limit // (rank + 1))
            node_limit *= _GROWTH

    def _is_over(self) -> bool:
        return time.monotonic() >= self.stop_s or self.task.is_over()
