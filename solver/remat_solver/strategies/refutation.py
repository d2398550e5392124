"""Attempts to prove that nothing fits, each deeper than the one before.

All schedules followed back together from their end prove most (`backward_walk`), as long as they want few values at
once; single ops traced back (`trace_back`) prove what can be seen at one place of a graph whose other places are roomy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.strategies.backward_walk import Verdict, judge_budget
from remat_solver.strategies.base import Task
from remat_solver.strategies.trace_back import TraceBack

_MOST_OPS = 64
"""Only so many of the ops that need the most memory are traced, the first of them deepest."""
_FIRST_NODES = 30
_GROWTH = 4
_WALK_SHARE = 0.3
"""Of an attempt's time at most."""
_FIRST_WALK, _LAST_WALK = 40_000, 400_000
"""Steps of a walk over all schedules, in the first attempt and at most in a later one."""


class Refutation:
    """Keeps its place between attempts."""

    def __init__(self, task: Task, lifetimes: Lifetimes) -> None:
        self.task = task
        self.lifetimes = lifetimes
        self.walk_effort = _FIRST_WALK
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
        if self.walk_effort > _LAST_WALK:
            return
        verdict = self._judge(self.task.budget_bytes)
        needed = verdict.needed_bytes
        if needed is not None:
            more = self._judge(needed).needed_bytes
            while more is not None:
                needed, more = more, self._judge(more).needed_bytes
            raise self.task.infeasible(proof_scope="order", below_bytes=needed)
        self.is_hopeless = verdict.is_settled
        self.walk_effort *= _GROWTH

    def _judge(self, budget_bytes: int) -> Verdict:
        return judge_budget(self.lifetimes, budget_bytes, effort=self.walk_effort, should_stop=self._is_over)

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
