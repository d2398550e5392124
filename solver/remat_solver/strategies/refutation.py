"""Attempts to prove that nothing fits, by tracing ops back, each deeper than the one before."""

from __future__ import annotations

import time
from collections.abc import Iterator

from remat_solver.regression import Regression
from remat_solver.strategies.base import Task

_MOST_OPS = 64
"""Only so many of the ops that need the most memory are traced, the first of them deepest."""
_FIRST_NODES = 30
_GROWTH = 4


class Refutation:
    """Keeps its place between attempts."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.regression = Regression(task.graph)
        self.questions = self._deeper_and_deeper()
        self.stop_s = 0.0

    def attempt(self, seconds: float) -> None:
        """Goes on for so long; raises `InfeasibleBudget` with proof scope "order" if nothing fits the budget."""
        self.stop_s = time.monotonic() + seconds
        budget = self.task.budget_bytes
        for op, node_limit in self.questions:
            bound = self._bound_bytes(op, node_limit, enough=budget)
            if bound > budget:
                # Not less than what was asked: the answer names the budgets that are out of the question.
                below = self._bound_bytes(op, node_limit, at_least=bound)
                raise self.task.infeasible(proof_scope="order", below_bytes=below)
            if self._is_over():
                return

    def _bound_bytes(self, op: int, node_limit: int, *, at_least: int = 0, enough: int | None = None) -> int:
        return self.regression.bound_bytes(
            op,
            at_least=max(at_least, self.task.budget_bytes),
            enough=enough,
            node_limit=node_limit,
            should_stop=self._is_over,
        )

    def _deeper_and_deeper(self) -> Iterator[tuple[int, int]]:
        tightest = self.regression.tightest_first()[:_MOST_OPS]
        node_limit = _FIRST_NODES
        while True:
            for rank, op in enumerate(tightest):
                if node_limit >= _FIRST_NODES * rank:
                    yield op, max(_FIRST_NODES, node_limit // (rank + 1))
            node_limit *= _GROWTH

    def _is_over(self) -> bool:
        return time.monotonic() >= self.stop_s or self.task.is_over()
