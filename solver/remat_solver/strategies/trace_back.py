"""Memory that every schedule needs, found by tracing what one op reads back in time.

Pebbling bounds and regression planning for the idea. Before the first run of op t its inputs must be in memory.
Something put them there: the run before was a recompute of one of them, or the first run of op t - 1. In either
case what has to be in memory before *that* run follows, and so on back to the first op. A state is a stage t (ops
before t have run) and the set of values that the rest of the trace needs. While an op runs, memory holds what it reads
and writes, its workspace, what the trace needs after it, and what stays anyway: outputs, and values
of ops that may not be recomputed and that have a reader to come.

Every schedule contains such a trace, whatever it does besides: runs that compute nothing that the trace needs are
passed over. So the least peak over all traces of an op is a lower bound on every budget, and the search below finds it
(or, with fewer nodes, something below it) as a shortest path in which the longest edge counts. Nothing is assumed on
the order of recomputations: the proof scope is "order". Replay states are left out, which keeps it a bound.

Near the floor this settles within a few states what a MIP can't in minutes: on a deep MLP no gradient can wait in
memory while the dropout before it is recomputed, so that nothing fits below 1.12 x the working-set bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from remat_solver.bounds import find_resident
from remat_solver.graph import Graph

Needs = frozenset[int]
"""Values that must be in memory at some moment."""

_POPS_PER_CHECK = 256


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Run:
    """The run before a state: it needs `peak_bytes`, and `needs` in memory at stage `stage` before it."""

    peak_bytes: int
    stage: int
    needs: Needs


class TraceBack:
    """Traces ops of `graph` back; `nodes` counts the states that were looked at."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reads = [frozenset(op.reads) for op in graph.ops]
        self.writes = [frozenset(graph.written_by(op)) for op in range(len(graph))]
        self.resident = find_resident(graph)
        self.nodes = 0

    def working_set_bytes(self, op: int) -> int:
        """Memory without which the op can't run for the first time."""
        return self._peak_bytes(op, op, frozenset())

    def bound_bytes(
        self,
        op: int,
        *,
        at_least: int = 0,
        enough: int | None = None,
        node_limit: int = 1000,
        should_stop: Callable[[], bool] = _never,
    ) -> int:
        """Bytes that every schedule needs so that `op` can run, or `at_least` if that is more.

        A larger `node_limit` proves more. The search ends early once more than `enough` is proven.
        """
        start = _Run(max(at_least, self.working_set_bytes(op)), op, self._without_resident(op, self.reads[op]))
        least = {(start.stage, start.needs): start.peak_bytes}
        tie = count()
        frontier = [(start.peak_bytes, start.stage, 0, next(tie), start.needs)]
        for pops in count():
            peak_bytes, stage, _, _, needs = heapq.heappop(frontier)
            if stage == 0 or len(least) > node_limit or (enough is not None and peak_bytes > enough):
                break
            if pops % _POPS_PER_CHECK == 0 and should_stop():
                break
            if peak_bytes > least[stage, needs]:
                continue
            for run in self._runs_before(stage, needs, peak_bytes):
                peak_so_far = max(peak_bytes, run.peak_bytes)
                if peak_so_far < least.get((run.stage, run.needs), peak_so_far + 1):
                    least[run.stage, run.needs] = peak_so_far
                    held = self._bytes_of(run.needs)
                    heapq.heappush(frontier, (peak_so_far, run.stage, held, next(tie), run.needs))
        self.nodes += len(least)
        return peak_bytes

    def _runs_before(self, stage: int, needs: Needs, allowed_bytes: int) -> list[_Run]:
        """Every run that can be the last one before `needs` are in memory at stage `stage`.

        A recompute whose inputs are needed anyway leaves less to trace at the same stage; where memory allows it,
        nothing else needs to be tried.
        """
        runs = []
        for op in sorted({self.graph.producer[value] for value in needs}):
            if not self.graph.ops[op].recomputable:
                continue
            before = self._run(op, stage, needs)
            if before.peak_bytes <= allowed_bytes and before.needs < needs:
                return [before]
            runs.append(before)
        runs.append(self._run(stage - 1, stage - 1, needs))
        return runs

    def _run(self, op: int, stage: int, needs_after: Needs) -> _Run:
        needs = self._without_resident(stage, (needs_after - self.writes[op]) | self.reads[op])
        return _Run(self._peak_bytes(op, stage, needs_after), stage, needs)

    def _peak_bytes(self, op: int, stage: int, needs_after: Needs) -> int:
        in_memory = self._without_resident(stage, needs_after | self.reads[op] | self.writes[op])
        return self.resident.bytes_at[stage] + self._bytes_of(in_memory) + self.graph.ops[op].workspace_bytes

    def _without_resident(self, stage: int, values: Iterable[int]) -> Needs:
        return frozenset(value for value in values if not self.resident.holds(value, stage))

    def _bytes_of(self, values: Iterable[int]) -> int:
        return sum(map(self.graph.sizes.__getitem__, values))
