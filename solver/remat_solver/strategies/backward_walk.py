"""Proofs that no schedule fits, by walking every schedule backwards at once.

Seen from its end, what a schedule must have had in memory is known: the values that its later steps read. A state
(f, W) stands for a moment at which the ops from f on have yet to run for the first time, and the values W are read
later from the copies that are in memory now. One step back over a run of op i leads from W to
(W - writes(i)) + reads(i), because all copies of what i writes come from that run, and i finds what it reads in
memory. The step is a first run (i = f - 1, then f falls by one) or a recompute (i < f, useful only if W holds
something that i writes). While i runs, W, its reads and its writes are in memory, its workspace too, and all outputs
of earlier ops: where that exceeds the budget, the step is blocked. Every schedule that fits, whatever the order and
the number of its recomputes, is a walk from (n, nothing) to (0, nothing): useless runs can be left out, and dropping
what is not wanted frees memory. So if no walk arrives, no schedule fits (proof scope "order"). Replay states are left
out, which only lets more walks arrive.

States that can be left out:

* Supersets, at the same f: what leads there and holds more drops the rest, and goes on as from the smaller set.
* All other steps from (f, W), if op i (f - 1, or a recompute) reads only what is in W and its step is not blocked.
  The state before has a subset of W. If it can be reached, so can W: run i. And if W can be reached, so can
  that subset: leave out every run of f - 1 (nothing before reads its values), or drop what i wrote.

Steps are blocked by comparison with the budget, and by nothing else. So the same walks are made, and none arrives, for
every budget below the least memory that a blocked step needs: all of these budgets are refuted together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from remat_solver.formulation.lifetimes import Lifetimes

_COMPARISONS = 16
"""So many comparisons of sets take as long as one step."""
_STEPS_PER_LOOK = 256

State = tuple[int, int]
"""(bytes of the wanted values, the wanted values as a set of bits)."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`needed_bytes`: what every schedule needs at least, if more than the budget. If that is None and `is_settled`,
    a walk arrived: nothing but replay states can be in the way of a schedule."""

    needed_bytes: int | None
    is_settled: bool


def judge_budget(lifetimes: Lifetimes, budget_bytes: int, *, effort: int, should_stop: Callable[[], bool]) -> Verdict:
    """Whether any walk arrives. `effort`: give up after about so many steps (some 200,000 a second)."""
    walk = Walk(lifetimes, budget_bytes, effort, should_stop)
    states: list[State] = [(0, 0)]
    for stage in range(len(lifetimes.graph) - 1, -1, -1):
        earlier = walk.before(stage, states)
        if earlier is None:
            return Verdict(needed_bytes=None, is_settled=False)
        if not earlier:
            return Verdict(needed_bytes=walk.least_blocked, is_settled=True)
        states = earlier
    return Verdict(needed_bytes=None, is_settled=True)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run of an op, seen backwards. Sets of values are bits; `touched` are the bits and sizes of both sets."""

    reads: int
    writes: int
    written_bytes: int
    touched: tuple[tuple[int, int], ...]
    workspace_bytes: int


class Walk:
    """Steps back over runs, under one budget, and what was spent on them."""

    def __init__(self, lifetimes: Lifetimes, budget_bytes: int, effort: int, should_stop: Callable[[], bool]) -> None:
        self.lifetimes = lifetimes
        self.producer = lifetimes.graph.producer
        self.budget_bytes = budget_bytes
        self.effort = effort
        self.should_stop = should_stop
        self.steps = 0
        self.least_blocked: int | None = None
        """The least memory that a blocked step needs."""
        self.runs = [self._run(op) for op in range(len(lifetimes.graph))]
        self.resident = [lifetimes.graph.fixed_bytes]
        """By op: what is in memory anyway while the op runs for the first time, outputs of its own included."""
        for op in range(len(lifetimes.graph)):
            self.resident.append(self.resident[-1] + self._lasting_bytes(op))
        del self.resident[0]

    def _run(self, op: int) -> _Run:
        sizes = self.lifetimes.graph.sizes
        reads, writes = self.lifetimes.reads[op], self.lifetimes.writes[op]
        return _Run(
            reads=sum(1 << value for value in reads),
            writes=sum(1 << value for value in writes),
            written_bytes=sum(sizes[value] for value in writes),
            touched=tuple((1 << value, sizes[value]) for value in (*reads, *writes)),
            workspace_bytes=self.lifetimes.graph.ops[op].workspace_bytes,
        )

    def _lasting_bytes(self, op: int) -> int:
        graph = self.lifetimes.graph
        return sum(graph.sizes[value] for value in graph.written_by(op) if graph.is_output[value])

    def before(self, stage: int, states: list[State]) -> list[State] | None:
        """The states right before the first run of op `stage`, from those right before the next first run.

        Smaller states come first, so that a superset always finds its subset there. None if the effort is used up.
        """
        queue = list(states)
        heapq.heapify(queue)
        seen = {wanted for _, wanted in states}
        kept: list[int] = []
        found: dict[int, int] = {}
        while queue:
            state = heapq.heappop(queue)
            wanted = state[1]
            if holds_any(wanted, kept):
                continue
            kept.append(wanted)
            if self.is_tired(len(kept)):
                return None
            first = self.step_back(stage, stage, state)
            if first is not None:
                found[first[1]] = first[0]
                if not self.runs[stage].reads & ~wanted:
                    continue
            for _, earlier in self.recomputes(stage, state):
                if earlier[1] not in seen:
                    seen.add(earlier[1])
                    heapq.heappush(queue, earlier)
        return _undominated(found)

    def recomputes(self, stage: int, state: State) -> list[tuple[int, State]]:
        """Ops that give some wanted value if they run again, each with the state before; one alone if it is best."""
        left = state[1]
        found: list[tuple[int, State]] = []
        while left:
            op = self.producer[(left & -left).bit_length() - 1]
            run = self.runs[op]
            left &= ~run.writes
            if not self.lifetimes.may_rerun[op]:
                continue
            earlier = self.step_back(op, stage, state)
            if earlier is None:
                continue
            if not run.reads & ~state[1]:
                return [(op, earlier)]
            found.append((op, earlier))
        return found

    def step_back(self, op: int, stage: int, state: State) -> State | None:
        """The state before a run of `op`, where `stage` is the next op that has yet to run; None if it is blocked."""
        in_use, wanted = state
        run = self.runs[op]
        for bit, size in run.touched:
            if not wanted & bit:
                in_use += size
        needed = in_use + run.workspace_bytes + self.resident[stage]
        if needed > self.budget_bytes:
            if self.least_blocked is None or needed < self.least_blocked:
                self.least_blocked = needed
            return None
        return in_use - run.written_bytes, (wanted & ~run.writes) | run.reads

    def is_tired(self, comparisons: int) -> bool:
        before = self.steps // _STEPS_PER_LOOK
        self.steps += 1 + comparisons // _COMPARISONS
        return self.steps > self.effort or (self.steps // _STEPS_PER_LOOK > before and self.should_stop())


def _undominated(found: dict[int, int]) -> list[State]:
    """The states, by size, without those that want what another wants and more. `found`: bytes by wanted values."""
    kept: list[int] = []
    for _, wanted in sorted((in_use, wanted) for wanted, in_use in found.items()):
        if not holds_any(wanted, kept):
            kept.append(wanted)
    return [(found[wanted], wanted) for wanted in kept]


def holds_any(wanted: int, others: list[int]) -> bool:
    """Whether one of the sets `others` lies within `wanted`."""
    return any([wanted & other == other for other in others])  # noqa: C419 (twice as fast as with a generator)
