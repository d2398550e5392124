"""Checkmate's program, densely and as printed (Jain et al., MLSys 2020, section 4), for graphs of up to ~200 ops.

Stage t runs some earlier ops again, in index order, and then op t for the first time (eq. 8,
"frontier-advancing"). Columns, with 0 <= k, i <= t < n and o a value of op p(o):

* `R[t,i]` in {0, 1}: op i runs in stage t. `R[t,t] = 1`.
* `S[t,o]` in {0, 1}: value o is in memory when stage t begins.
* `Free[t,o,k]` in {0, 1}: value o is freed in stage t right after op k, which reads or writes it.
* `U[t,k]` >= 0: memory in use in stage t at the place of op k, before what dies there is freed.

Minimise `sum c_i R[t,i]` subject to

1. `R[t,i] <= R[t,p(o)] + S[t,o]` for each value o that i reads (eq. 1b)
2. `S[t,o] <= S[t-1,o] + R[t-1,p(o)]` (eq. 1c)
3. `U[t,0] = fixed + sum size_o S[t,o] + size(0) R[t,0]` and `U[t,k] = U[t,k-1] - sum size_o Free[t,o,k-1]
   + size(k) R[t,k]` (eq. 2, 3)
4. with `hazards[t,o,k] = (1 - R[t,k]) + S[t+1,o] + sum of R[t,j] over readers j of o with k < j <= t`:
   `1 - Free[t,o,k] <= hazards <= most_hazards (1 - Free[t,o,k])` (eq. 5, 7)
5. `U[t,k] + workspace(k) R[t,k] + state[t,k] <= budget` (eq. 4)

Departures from the print, which make it the problem that the referee judges:

* Several values per op: S and Free are per value, R per op; `size(k)` sums what op k writes.
* Outputs: from their op on they count as resident; they have no S and no Free, and running their
  op again adds nothing for them.
* Workspace and replay state (row 5). `Z[t,i] >= R[t,i], Z[t+1,i]`: op i runs again in stage t or later.
  Its state is held from its first run to its last recompute, both included: `state[t,k]` sums
  `state_i Z[t,i]` for k <= i < t, and `state_i Z[t+1,i]` for i < k or i = t = k.
* Ops that may not be recomputed have `R[t,i] = 0` for t > i. Values that pins bar from the
  forward-backward boundary have `S = 0` there.

The print lets a value be kept into a stage that recomputes its op, and counts it twice then. Such a
schedule is never needed: index order puts every reader after the recompute, so that S can be 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from remat_solver.engines.base import MixedIntegerProgram
from remat_solver.graph import Graph

_BUDGET_SCALE = 2.0**14
_TIME_SCALE = 1e4

Terms = dict[int, float]
"""A linear expression: coefficients by column."""


@dataclass(kw_only=True)
class DenseModel:
    """The program, and what its columns are.

    `rerun[t]`: the columns R[t,i] by op i < t; `kept[t]`: the columns S[t,o] by value. `memory_unit` and
    `time_unit` are the bytes and ns of one model unit.
    """

    memory_unit: float
    time_unit: float
    program: MixedIntegerProgram = field(default_factory=MixedIntegerProgram)
    rerun: list[dict[int, int]] = field(default_factory=list)
    kept: list[dict[int, int]] = field(default_factory=list)

    def schedule(self, x: tuple[float, ...]) -> tuple[int, ...]:
        """The schedule that a solution describes."""
        runs: list[int] = []
        for stage, rerun in enumerate(self.rerun):
            runs.extend(op for op in sorted(rerun) if x[rerun[op]] > 0.5)
            runs.append(stage)
        return tuple(runs)

    def bound_ns(self, graph: Graph, bound: float) -> int:
        """A bound on the objective as one on the time: whole ns, rounded up once the engines' tolerance is off."""
        if not math.isfinite(bound):
            return graph.total_time_ns
        return graph.total_time_ns + math.ceil(max(bound, 0.0) * self.time_unit - 1e-6 * graph.total_time_ns)


def build_dense(
    graph: Graph, budget_bytes: int, *, absent: frozenset[int] = frozenset(), boundary: int | None = None
) -> DenseModel:
    """The whole program, O(ops x (ops + edges)) columns and rows.

    `absent`: ops whose values (outputs and values without bytes excepted) must not be in memory when
    stage `boundary` begins. Bytes are divided by a power of two, which is exact.
    """
    model = DenseModel(
        memory_unit=2.0 ** math.ceil(math.log2(max(budget_bytes, 1))) / _BUDGET_SCALE,
        time_unit=max(graph.total_time_ns, 1) / _TIME_SCALE,
    )
    _Builder(graph, budget_bytes, model, absent, boundary).build()
    return model


class _Builder:
    def __init__(
        self, graph: Graph, budget_bytes: int, model: DenseModel, absent: frozenset[int], boundary: int | None
    ) -> None:
        self.graph = graph
        self.model = model
        self.program = model.program
        self.rerun = model.rerun
        self.absent = absent
        self.boundary = boundary
        self.memory_unit = model.memory_unit
        self.budget = budget_bytes / self.memory_unit
        self.size = [size / self.memory_unit for size in graph.sizes]
        self.volatile = [[v for v in graph.written_by(i) if not graph.is_output[v]] for i in range(len(graph))]
        self.kept = model.kept
        self.again: list[dict[int, int]] = []

    def build(self) -> None:
        n = len(self.graph)
        for stage in range(n):
            self._add_decisions(stage)
        self._add_replay_states()
        for stage in range(n):
            self._add_dependencies(stage)
            self._add_memory(stage)

    def _add_decisions(self, stage: int) -> None:
        """R and S of the stage, with rows 2."""
        ops = self.graph.ops
        self.rerun.append(
            {
                i: self.program.add_column(cost=ops[i].time_ns / self.model.time_unit)
                for i in range(stage)
                if ops[i].recomputable
            }
        )
        kept: dict[int, int] = {}
        for i in range(stage):
            for value in self.volatile[i]:
                kept[value] = self.program.add_column(upper=0.0 if self._is_barred(stage, i, value) else 1.0)
        self.kept.append(kept)
        for value, column in kept.items():
            producer = self.graph.producer[value]
            if producer < stage - 1:
                terms = {column: 1.0, self.kept[stage - 1][value]: -1.0}
                if producer in self.rerun[stage - 1]:
                    terms[self.rerun[stage - 1][producer]] = -1.0
                self._add_row(terms, upper=0.0)

    def _is_barred(self, stage: int, op: int, value: int) -> bool:
        return stage == self.boundary and op in self.absent and self.graph.sizes[value] > 0

    def _add_dependencies(self, stage: int) -> None:
        """Rows 1."""
        for i in (*self.rerun[stage], stage):
            for value in self.graph.ops[i].reads:
                if self.graph.is_output[value]:
                    continue
                terms = {self.kept[stage][value]: -1.0}
                producer = self.graph.producer[value]
                if producer in self.rerun[stage]:
                    terms[self.rerun[stage][producer]] = -1.0
                if i == stage:
                    self._add_row(terms, upper=-1.0)
                else:
                    self._add_row({self.rerun[stage][i]: 1.0, **terms}, upper=0.0)

    def _add_memory(self, stage: int) -> None:
        """U and Free of the stage, with rows 3, 4 and 5."""
        resident = self.graph.fixed_bytes / self.memory_unit
        resident += sum(self.size[v] for v in self.graph.outputs if self.graph.producer[v] < stage)
        begin = {column: self.size[value] for value, column in self.kept[stage].items()}
        previous: int | None = None
        for k in range(stage + 1):
            level: Terms = {}
            constant = 0.0
            if previous is None:
                level.update(begin)
                constant = resident
            else:
                level[previous] = 1.0
                level.update(self._add_frees(stage, k - 1))
            constant += self._add_written(level, stage, k)
            in_use = self.program.add_column(lower=0.0, upper=math.inf, integer=False)
            self._add_row({**{c: -a for c, a in level.items()}, in_use: 1.0}, lower=constant, upper=constant)
            self._add_budget(stage, k, in_use)
            previous = in_use

    def _add_written(self, level: Terms, stage: int, k: int) -> float:
        """Adds what op k writes in the stage to `level`; returns the part that does not depend on any column."""
        if k == stage:
            return sum(self.size[value] for value in self.graph.written_by(k))
        if k in self.rerun[stage]:
            level[self.rerun[stage][k]] = sum(self.size[value] for value in self.volatile[k])
        return 0.0

    def _add_frees(self, stage: int, k: int) -> Terms:
        """The memory that op k's frees give back in the stage, with columns Free and rows 4."""
        if k not in self.rerun[stage]:
            return {}
        freed: Terms = {}
        read = [value for value in self.graph.ops[k].reads if not self.graph.is_output[value]]
        for value in (*read, *self.volatile[k]):
            hazards: Terms = {self.rerun[stage][k]: -1.0}
            constant = 1.0
            if stage + 1 < len(self.graph):
                hazards[self.kept[stage + 1][value]] = 1.0
            for reader in self.graph.readers[value]:
                if k < reader < stage and reader in self.rerun[stage]:
                    hazards[self.rerun[stage][reader]] = 1.0
                elif reader == stage:
                    constant += 1.0
            most = constant + len(hazards) - 1
            free = self.program.add_column()
            self._add_row({**hazards, free: 1.0}, lower=1.0 - constant, upper=math.inf)
            self._add_row({**hazards, free: most}, upper=most - constant)
            freed[free] = -self.size[value]
        return freed

    def _add_replay_states(self) -> None:
        """Z[t,i] for t > i, for the ops that have a state."""
        n = len(self.graph)
        self.again = [{} for _ in range(n + 1)]
        for i, op in enumerate(self.graph.ops):
            if not op.recompute_state_bytes or not op.recomputable:
                continue
            for stage in range(n - 1, i, -1):
                column = self.program.add_column(integer=False)
                self.again[stage][i] = column
                self._add_row({column: 1.0, self.rerun[stage][i]: -1.0}, lower=0.0, upper=math.inf)
                if stage + 1 < n:
                    self._add_row({column: 1.0, self.again[stage + 1][i]: -1.0}, lower=0.0, upper=math.inf)

    def _add_budget(self, stage: int, k: int, in_use: int) -> None:
        """Row 5."""
        terms: Terms = {in_use: 1.0}
        limit = self.budget
        op = self.graph.ops[k]
        if k == stage:
            limit -= op.workspace_bytes / self.memory_unit
        elif k in self.rerun[stage] and op.workspace_bytes:
            terms[self.rerun[stage][k]] = op.workspace_bytes / self.memory_unit
        for i, column in self.again[stage].items():
            if k <= i:
                terms[column] = self.graph.ops[i].recompute_state_bytes / self.memory_unit
        for i, column in self.again[stage + 1].items():
            if i < k or i == stage == k:
                terms[column] = self.graph.ops[i].recompute_state_bytes / self.memory_unit
        self._add_row(terms, upper=limit)

    def _add_row(self, terms: Terms, *, upper: float, lower: float = -math.inf) -> None:
        self.program.add_row(list(terms), list(terms.values()), lower=lower, upper=upper)
