"""Range rows: the range cuts that matter, written from the start with a column for each op and range.

`formulation.range_cuts` tells why a program with several slots needs "computed at least once in intervals k..l". Cuts
come a few paths at a time, and as long as one way around them is left, a relaxation does not rise. But few ranges
matter: those that begin at a slot k and end with the interval in which a first run next reads a value that is in memory
at k, or is not. For these, and for all ops on the way to such values:

    C[k,l,i] <= sum of R[m,i] over the intervals m = k+1..l  +  sum of X[m] over the slots between with v_m = i
    S[k,o] + C[k,l,p(o)] >= 1           for each value o that a first run in interval l is the next to read
    S[k,o] + C[k,l,p(o)] >= C[k,l,j]    for each value o that an op j on the way reads

Valid for every schedule: C is "i runs in the range", and what is read in it was in memory at slot k or is written in
it. One relaxation gives nearly what a dozen give with cuts. Branching, however, is slower with these columns.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.memory_cuts import ONE, CutModel
from remat_solver.formulation.range_cuts import runs_in


def add_ranges(lifetimes: Lifetimes, model: CutModel) -> None:
    """Writes the columns C and their rows to `model.program`."""
    for k in range(len(model.slots)):
        for end, values in _next_reads(lifetimes, model, k).items():
            if end > k + 1:
                _Range(lifetimes, model, k, end).add(values)


def _first_new(model: CutModel, k: int) -> int:
    """The first op whose first run lies after slot k."""
    stage, op = model.slots[k]
    return stage + 1 if op == stage else stage


def _next_reads(lifetimes: Lifetimes, model: CutModel, k: int) -> dict[int, list[int]]:
    """The values that may be missing at slot k, by the interval in which a first run reads them next."""
    new = _first_new(model, k)
    found: dict[int, list[int]] = {}
    for op in range(new):
        for value in lifetimes.writes[op]:
            reader = next((reader for reader in lifetimes.graph.readers[value] if reader >= new), None)
            if reader is not None and model.kept[k].get(value) != ONE:
                found.setdefault(bisect_left(model.slots, (reader, reader)), []).append(value)
    return found


class _Range:
    """The intervals k+1 to `end`, and for each op that may run again in them the column that says whether it does."""

    def __init__(self, lifetimes: Lifetimes, model: CutModel, k: int, end: int) -> None:
        self.lifetimes = lifetimes
        self.model = model
        self.k = k
        self.end = end
        self.producer = lifetimes.graph.producer
        self.kept = model.kept[k]
        self.runs: dict[int, int | None] = {}

    def add(self, values: Sequence[int]) -> None:
        """The rows for `values`, which first runs in interval `end` read next, and for what making them again reads."""
        for value in values:
            self._add_row(value, reader=None)
        pending = [self.producer[value] for value in values]
        done: set[int] = set()
        while pending:
            op = pending.pop()
            reader = self._run_of(op)
            if reader is None or op in done:
                continue
            done.add(op)
            for value in self.lifetimes.reads[op]:
                if self.kept.get(value) != ONE:
                    self._add_row(value, reader=reader)
                    pending.append(self.producer[value])

    def _run_of(self, op: int) -> int | None:
        """The column that says whether `op` runs again in the range; None if it can't."""
        if op not in self.runs:
            columns = list(runs_in(self.model, op, range(self.k + 1, self.end + 1), range(self.k + 1, self.end)))
            self.runs[op] = self._any_of(columns) if columns else None
        return self.runs[op]

    def _any_of(self, columns: list[int]) -> int:
        if len(columns) == 1:
            return columns[0]
        column = self.model.program.add_column(integer=False)
        self.model.implied.append((column, columns))
        coefficients = [1.0] + [-1.0] * len(columns)
        self.model.program.add_row([column, *columns], coefficients, lower=-math.inf, upper=0.0)
        return column

    def _add_row(self, value: int, *, reader: int | None) -> None:
        """What is read in the range was in memory at slot k, or is written in it; a first run reads for certain."""
        sources = [c for c in (self.kept.get(value), self._run_of(self.producer[value])) if c is not None]
        if reader is None:
            self.model.program.add_row(sources, [1.0] * len(sources), lower=1.0, upper=math.inf)
        else:
            coefficients = [1.0] * len(sources) + [-1.0]
            self.model.program.add_row([*sources, reader], coefficients, lower=0.0, upper=math.inf)
