"""A small program around one schedule: a few ops may be recomputed anew, everything else stays as it is.

The algebra is that of memory cuts, on the steps of the given schedule instead of Checkmate's slots. The
recomputes of the *free* ops are taken out of the schedule; what is left is the base. Whether a value of
a free op is in memory can only change where the base reads or writes one, or where a free op ran again:
these steps are the *breakpoints*, and between two of them the step with the highest memory stands for
all. So the program has a row of memory per breakpoint and per stretch between two, and columns for the
free ops only.

It is a heuristic's tool: its optimum proves nothing, and the memory in use while a free op runs again
is not modelled. Whoever uses it replays the schedule that comes out.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from remat_solver.engines.base import MixedIntegerProgram
from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.memory_cuts import BUDGET_SCALE, ONE, TIME_SCALE, Scale, scale_for

EXCESS_PRICE = 10 * TIME_SCALE / BUDGET_SCALE
"""Of a memory unit above the budget in one row: 1% of the budget costs 10% of the store-all time."""


@dataclass(kw_only=True)
class NeighbourhoodModel:
    """The program; `rerun[k]` maps each free op that may run right before breakpoint k to its column.

    `base` is the schedule without the free ops' recomputes, `breakpoints` steps of it.
    """

    base: list[int]
    breakpoints: list[int]
    scale: Scale
    program: MixedIntegerProgram = field(default_factory=MixedIntegerProgram)
    rerun: list[dict[int, int]] = field(default_factory=list)
    contradiction: bool = False

    def schedule(self, x: Sequence[float]) -> list[int]:
        """The base with the recomputes that a solution `x` chooses."""
        chosen = {
            step: sorted(op for op, column in rerun.items() if x[column] > 0.5)
            for step, rerun in zip(self.breakpoints, self.rerun, strict=True)
        }
        return [op for step, own in enumerate(self.base) for op in (*chosen.get(step, ()), own)]


def build_neighbourhood(
    lifetimes: Lifetimes,
    schedule: Sequence[int],
    free: Collection[int],
    budget_bytes: int,
    *,
    is_elastic: bool = False,
) -> NeighbourhoodModel:
    """The program for a schedule that fits `budget_bytes`, in O(steps + breakpoints x free ops).

    With `is_elastic` rows of memory may be exceeded at a price, so that it serves for a schedule that
    does not fit: the optimum exceeds the budget by less where that is possible.
    """
    return _Builder(lifetimes, schedule, frozenset(free), budget_bytes, is_elastic=is_elastic).build()


class _Builder:
    def __init__(
        self,
        lifetimes: Lifetimes,
        schedule: Sequence[int],
        free: frozenset[int],
        budget_bytes: int,
        *,
        is_elastic: bool,
    ) -> None:
        self.is_elastic = is_elastic
        self.lifetimes = lifetimes
        self.graph = lifetimes.graph
        self.free = free
        self.budget_bytes = budget_bytes
        self.base = self._without_free_recomputes(schedule)
        self.last_use = self._find_last_uses()
        self.in_use = self._base_memory()
        self.model = NeighbourhoodModel(
            base=self.base, breakpoints=self._find_breakpoints(), scale=scale_for(lifetimes.graph, budget_bytes)
        )
        self.program = self.model.program
        self.present: dict[int, int] = {}
        self.final_read = self._find_final_reads()

    def _without_free_recomputes(self, schedule: Sequence[int]) -> list[int]:
        seen: set[int] = set()
        base: list[int] = []
        self.recomputed_before: dict[int, list[int]] = {}
        for op in schedule:
            if op not in seen or op not in self.free:
                base.append(op)
            else:
                self.recomputed_before.setdefault(len(base), []).append(op)
            seen.add(op)
        return base

    def _find_last_uses(self) -> dict[tuple[int, int], int]:
        """For each copy (step, value) that an op that is not free writes: twice its last reader's step.

        What the recomputes that were taken out had read stays as long as it did for them: until twice
        the step before which they ran, minus 1.
        """
        latest: dict[int, int] = {}
        last_use: dict[tuple[int, int], int] = {}
        producer = self.graph.producer
        for step, op in enumerate(self.base):
            readers = [(reader, 2 * step - 1) for reader in self.recomputed_before.get(step, ())]
            for reader, moment in (*readers, (op, 2 * step)):
                for value in self.lifetimes.reads[reader]:
                    if producer[value] not in self.free:
                        last_use[latest[producer[value]], value] = moment
            latest[op] = step
            if op not in self.free:
                for value in self.lifetimes.writes[op]:
                    last_use[step, value] = 2 * step
        return last_use

    def _base_memory(self) -> list[int]:
        """Memory in use at each step of the base, the free ops' volatile values left out."""
        freed = [0] * (2 * len(self.base))
        for (_, value), moment in self.last_use.items():
            freed[moment] += self.graph.sizes[value]
        states = sum(self.graph.ops[op].recompute_state_bytes for op in self.free)
        amount = self.graph.fixed_bytes + states
        seen: set[int] = set()
        in_use = []
        for step, op in enumerate(self.base):
            amount -= freed[2 * step - 1] if step else 0
            if op not in seen:
                seen.add(op)
                amount += sum(self.graph.sizes[v] for v in self.graph.written_by(op) if self.lifetimes.is_lasting[v])
            if op not in self.free:
                amount += sum(self.graph.sizes[value] for value in self.lifetimes.writes[op])
            in_use.append(amount + self.graph.ops[op].workspace_bytes)
            amount -= freed[2 * step]
        return in_use

    def _find_breakpoints(self) -> list[int]:
        producer = self.graph.producer
        return [
            step
            for step, op in enumerate(self.base)
            if op in self.free
            or step in self.recomputed_before
            or any(producer[value] in self.free for value in self.lifetimes.reads[op])
        ]

    def _find_final_reads(self) -> dict[int, int]:
        """Per value of a free op: the last breakpoint step at which it can serve, recomputes included."""
        final: dict[int, int] = {}
        producer = self.graph.producer
        for step in self.model.breakpoints:
            for value in self.lifetimes.reads[self.base[step]]:
                if producer[value] in self.free:
                    final[value] = step
        for op in sorted(self.free, reverse=True):
            latest = max((final.get(value, -1) for value in self.lifetimes.writes[op]), default=-1)
            for value in self.lifetimes.reads[op]:
                if producer[value] in self.free:
                    final[value] = max(final.get(value, -1), latest)
        return final

    def build(self) -> NeighbourhoodModel:
        before = -1
        done: set[int] = set()
        for step in self.model.breakpoints:
            if before >= 0 and step > before + 1:
                self._add_stretch(before, max(self.in_use[before + 1 : step]))
            rerun = self._add_recomputes(step, done)
            self.model.rerun.append(rerun)
            self._add_breakpoint(step, rerun)
            if self.base[step] in self.free:
                done.add(self.base[step])
            before = step
        if before + 1 < len(self.base):
            self._add_stretch(before, max(self.in_use[before + 1 :]))
        return self.model

    def _add_stretch(self, before: int, base_bytes: int) -> None:
        """Between breakpoint `before` and the next: what stays in memory, where not everything can."""
        self.present = {v: column for v, column in self.present.items() if self.final_read.get(v, -1) > before}
        if base_bytes + sum(self.graph.sizes[value] for value in self.present) <= self.budget_bytes:
            return
        staying: dict[int, int] = {}
        for value, column in self.present.items():
            staying[value] = self.program.add_column()
            if column != ONE:
                self.program.add_row([staying[value], column], [1.0, -1.0], lower=-math.inf, upper=0.0)
        self.present = staying
        self._add_memory_row(base_bytes)

    def _add_recomputes(self, step: int, done: set[int]) -> dict[int, int]:
        """Columns R right before `step`, each below the sources of what the op reads."""
        rerun: dict[int, int] = {}
        for op in sorted(done):
            if not self.lifetimes.may_rerun[op] or self._serves_until(op) < step:
                continue
            sources = self._sources(op, step, rerun)
            if sources is None:
                continue
            column = self.program.add_column(cost=self.graph.ops[op].time_ns / self.model.scale.time_unit)
            rerun[op] = column
            for terms in sources:
                self.program.add_row([column, *terms], [1.0] + [-1.0] * len(terms), lower=-math.inf, upper=0.0)
        return rerun

    def _serves_until(self, op: int) -> int:
        return max((self.final_read.get(value, -1) for value in self.lifetimes.writes[op]), default=-1)

    def _sources(self, op: int, step: int, rerun: dict[int, int]) -> list[list[int]] | None:
        found: list[list[int]] = []
        for value in self.lifetimes.reads[op]:
            producer = self.graph.producer[value]
            if producer not in self.free:
                if not self._is_in_base(value, step):
                    return None
                continue
            kept, again = self.present.get(value), rerun.get(producer)
            if kept == ONE:
                continue
            terms = [column for column in (kept, again) if column is not None]
            if not terms:
                return None
            found.append(terms)
        return found

    def _is_in_base(self, value: int, step: int) -> bool:
        """Whether a value of an op that is not free is in memory right before `step` of the base."""
        run = self._latest_run(self.graph.producer[value], step)
        return run is not None and self.last_use[run, value] >= 2 * step - 1

    def _latest_run(self, op: int, step: int) -> int | None:
        runs = self._runs.get(op, ())
        index = bisect.bisect_left(runs, step)
        return runs[index - 1] if index else None

    @cached_property
    def _runs(self) -> dict[int, list[int]]:
        runs: dict[int, list[int]] = {}
        for step, op in enumerate(self.base):
            runs.setdefault(op, []).append(step)
        return runs

    def _add_breakpoint(self, step: int, rerun: dict[int, int]) -> None:
        """Columns S at `step` and its row of memory."""
        op = self.base[step]
        required = {value for value in self.lifetimes.reads[op] if self.graph.producer[value] in self.free}
        candidates = {value for again in rerun for value in self.lifetimes.writes[again]} | set(self.present) | required
        after: dict[int, int] = {}
        for value in sorted(candidates):
            if self.final_read.get(value, -1) < step:
                continue
            column = self._kept_column(value, rerun, is_required=value in required)
            if column is not None:
                after[value] = column
        dead = 0
        if op in self.free:
            for value in self.lifetimes.writes[op]:
                if self.final_read.get(value, -1) > step:
                    after[value] = ONE
                else:
                    dead += self.graph.sizes[value]
        self.present = after
        self._add_memory_row(self.in_use[step] + dead)

    def _kept_column(self, value: int, rerun: dict[int, int], *, is_required: bool) -> int | None:
        kept, again = self.present.get(value), rerun.get(self.graph.producer[value])
        sources = [column for column in (kept, again) if column is not None]
        if is_required:
            if not sources:
                self.model.contradiction = True
            elif ONE not in sources:
                self.program.add_row(sources, [1.0] * len(sources), lower=1.0, upper=math.inf)
            return ONE
        if not sources:
            return None
        column = self.program.add_column()
        if ONE not in sources:
            self.program.add_row([column, *sources], [1.0] + [-1.0] * len(sources), lower=-math.inf, upper=0.0)
        return column

    def _add_memory_row(self, base_bytes: int) -> None:
        """Room for the free ops' values that are present; left out where all of them fit."""
        room = self.budget_bytes - base_bytes
        columns: list[int] = []
        sizes: list[int] = []
        for value, column in self.present.items():
            if column == ONE:
                room -= self.graph.sizes[value]
            else:
                columns.append(column)
                sizes.append(self.graph.sizes[value])
        if sum(sizes) <= room:
            return
        unit = self.model.scale.memory_unit
        coefficients = [size / unit for size in sizes]
        if self.is_elastic:
            columns.append(self.program.add_column(cost=EXCESS_PRICE, upper=math.inf, integer=False))
            coefficients.append(-1.0)
        elif room < 0:
            self.model.contradiction = True
        self.program.add_row(columns, coefficients, lower=-math.inf, upper=room / unit)
