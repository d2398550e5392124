"""Proofs that no schedule fits, by walking every schedule backwards at once.

Seen from its end, what a schedule must have had in memory is known: the values that its later steps read. A state
(f, W) stands for a moment at which the ops from f on have yet to run for the first time, and the values W are read
later from the copies that are in memory now. One step back over a run of op i leads from W to
(W - writes(i)) + reads(i), because all copies of what i writes come from that run, and i finds what it reads in
memory. The step is a first run (i = f - 1, then f falls by one) or a recompute (i < f, useful only if W holds
something that i writes). While i runs, W, its reads and its writes are in memory, its workspace too, and all outputs
of earlier ops: where that exceeds the budget, the step is blocked. Every schedule that fits, whatever the order and
the number of its recomputes, is a walk from (n, nothing) to (0, nothing): useless runs can be left out, and dropping
what is not wanted frees memory. So if no walk arrives, no schedule fits (proof scope "order").

An op's replay state is one more value: every recompute reads it, and only the first run writes it, at no cost if no
recompute does.

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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.strategies.wanted_sets import WantedSets

_COMPARISONS = 16
"""Looking for a subset among so many sets takes as long as one step, at most."""
_STEPS_PER_LOOK = 256

State = tuple[int, int]
"""(bytes of the wanted values, the wanted values as a set of bits)."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`needed_bytes`: what every schedule needs at least, if more than the budget; None if some schedule fits."""

    needed_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run of an op, seen backwards. Sets of values are bits.

    `touched`: bits and sizes of what is in memory because of this run. `replay_state`: the bit of the op's replay state
    if this is the run before which it is not held, else 0.
    """

    reads: int
    writes: int
    written_bytes: int
    touched: tuple[tuple[int, int], ...]
    workspace_bytes: int
    replay_state: int = 0
    replay_state_bytes: int = 0


class Walk:
    """Steps back over runs, under one budget, and what was spent on them."""

    def __init__(self, lifetimes: Lifetimes, budget_bytes: int, effort: int, should_stop: Callable[[], bool]) -> None:
        graph = lifetimes.graph
        self.lifetimes = lifetimes
        self.producer = graph.producer
        self.sizes = (*graph.sizes, *(op.recompute_state_bytes for op in graph.ops))
        """Of the values, then of the ops' replay states: by bit."""
        self.values = (1 << len(graph.sizes)) - 1
        """All values as a set, without the replay states."""
        self.budget_bytes = budget_bytes
        self.effort = effort
        self.should_stop = should_stop
        self.steps = 0
        self.least_blocked: int | None = None
        """The least memory that a blocked step needs."""
        self.first_runs = [self._first_run(op) for op in range(len(graph))]
        self.reruns = [self._rerun(op) for op in range(len(graph))]
        self.resident = [graph.fixed_bytes]
        """By op: what is in memory anyway while the op runs for the first time, outputs of its own included."""
        for op in range(len(graph)):
            self.resident.append(self.resident[-1] + self._lasting_bytes(op))
        del self.resident[0]

    def _first_run(self, op: int) -> _Run:
        reads, writes = self.lifetimes.reads[op], self.lifetimes.writes[op]
        state = self._replay_state(op)
        return _Run(
            reads=_set_of(reads),
            writes=_set_of((*writes, *state)),
            written_bytes=sum(self.sizes[value] for value in writes),
            touched=self._touched((*reads, *writes)),
            workspace_bytes=self.lifetimes.graph.ops[op].workspace_bytes,
            replay_state=_set_of(state),
            replay_state_bytes=sum(self.sizes[bit] for bit in state),
        )

    def _rerun(self, op: int) -> _Run:
        run, state = self.first_runs[op], self._replay_state(op)
        if not state:
            return run
        return _Run(
            reads=run.reads | run.replay_state,
            writes=run.writes & ~run.replay_state,
            written_bytes=run.written_bytes,
            touched=(*run.touched, *self._touched(state)),
            workspace_bytes=run.workspace_bytes,
        )

    def _replay_state(self, op: int) -> tuple[int, ...]:
        """The bit of an op's replay state, if it has one."""
        bit = len(self.lifetimes.graph.sizes) + op
        return (bit,) if self.sizes[bit] else ()

    def _touched(self, values: Sequence[int]) -> tuple[tuple[int, int], ...]:
        return tuple((1 << value, self.sizes[value]) for value in values)

    def _lasting_bytes(self, op: int) -> int:
        graph = self.lifetimes.graph
        return sum(graph.sizes[value] for value in graph.written_by(op) if graph.is_output[value])

    def recomputes(self, stage: int, state: State) -> list[tuple[int, State]]:
        """Ops that give some wanted value if they run again, each with the state before; one alone if it is best."""
        left = state[1] & self.values
        found: list[tuple[int, State]] = []
        while left:
            op = self.producer[(left & -left).bit_length() - 1]
            run = self.reruns[op]
            left &= ~run.writes
            if not self.lifetimes.may_rerun[op]:
                continue
            earlier = self.step_back(run, stage, state)
            if earlier is None:
                continue
            if not run.reads & ~state[1]:
                return [(op, earlier)]
            found.append((op, earlier))
        return found

    def step_back(self, run: _Run, stage: int, state: State) -> State | None:
        """The state before a run, up to which no op after `stage` has run; None if it is blocked."""
        in_use, wanted = state
        for bit, size in run.touched:
            if not wanted & bit:
                in_use += size
        needed = in_use + run.workspace_bytes + self.resident[stage]
        if needed > self.budget_bytes:
            if self.least_blocked is None or needed < self.least_blocked:
                self.least_blocked = needed
            return None
        in_use -= run.written_bytes
        if wanted & run.replay_state:
            in_use -= run.replay_state_bytes
        return in_use, (wanted & ~run.writes) | run.reads

    def needed_bytes(self, run: _Run, stage: int, state: State) -> int:
        """Memory in use while a run leads to a state."""
        in_use, wanted = state
        in_use += sum(size for bit, size in run.touched if not wanted & bit)
        return in_use + run.workspace_bytes + self.resident[stage]

    def is_tired(self, comparisons: int) -> bool:
        before = self.steps // _STEPS_PER_LOOK
        self.steps += 1 + comparisons // _COMPARISONS
        return self.steps > self.effort or (self.steps // _STEPS_PER_LOOK > before and self.should_stop())


class Judge(Walk):
    """Finds out whether any walk arrives; keeps its place between turns."""

    def __init__(self, lifetimes: Lifetimes, budget_bytes: int) -> None:
        super().__init__(lifetimes, budget_bytes, 0, lambda: True)
        self.verdict: Verdict | None = None
        self._verdicts = self._follow()

    def judge(self, *, effort: int, should_stop: Callable[[], bool]) -> Verdict | None:
        """Goes on for about so many steps (some 300,000 a second). None if that was too few."""
        self.effort = self.steps + effort
        self.should_stop = should_stop
        if self.verdict is None:
            self.verdict = next(self._verdicts)
        return self.verdict

    def _follow(self) -> Iterator[Verdict | None]:
        """The verdict; None each time the effort is used up before that."""
        states: list[State] = [(0, 0)]
        for stage in range(len(self.lifetimes.graph) - 1, -1, -1):
            states = yield from self._before(stage, states)
            if not states:
                yield Verdict(needed_bytes=self.least_blocked)
        yield Verdict(needed_bytes=None)

    def _before(self, stage: int, states: list[State]) -> Generator[None, None, list[State]]:
        """The states right before the first run of op `stage`, from those right before the next first run.

        Smaller states come first, so that a superset always finds its subset there.
        """
        queue = list(states)
        heapq.heapify(queue)
        seen = {wanted for _, wanted in states}
        kept = WantedSets()
        found: dict[int, int] = {}
        while queue:
            state = heapq.heappop(queue)
            wanted = state[1]
            if kept.any_within(wanted):
                continue
            kept.add(wanted)
            if self.is_tired(len(kept)):
                yield None
            first = self.step_back(self.first_runs[stage], stage, state)
            if first is not None:
                found[first[1]] = first[0]
                if not self.first_runs[stage].reads & ~wanted:
                    continue
            for _, earlier in self.recomputes(stage, state):
                if earlier[1] not in seen:
                    seen.add(earlier[1])
                    heapq.heappush(queue, earlier)
        return _undominated(found)


def _set_of(bits: Iterable[int]) -> int:
    return sum(1 << bit for bit in bits)


def _undominated(found: dict[int, int]) -> list[State]:
    """The states, by size, without those that want what another wants and more. `found`: bytes by wanted values."""
    kept: list[State] = []
    known = WantedSets()
    for in_use, wanted in sorted((in_use, wanted) for wanted, in_use in found.items()):
        if not known.any_within(wanted):
            known.add(wanted)
            kept.append((in_use, wanted))
    return kept
