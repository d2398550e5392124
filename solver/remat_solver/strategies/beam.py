"""Beam search over what is in memory: schedules for budgets at which ops must run several times.

A state is a stage t (the ops before t have run) and the set of values in memory. From it the missing inputs of op t
are computed, the earliest op first. Nothing is dropped before memory runs out; then a state branches into several ways
to make room. At each stage the states that promise to be fastest in the end survive.

What a state promises: its time so far, and for each op whose values are missing its time, `d ** demand_power`
times, where d is the number of later first runs that need it. With power 0 an op would run once for all of them, with
power 1 once for each; the truth lies between, the nearer to 1 the less memory there is. In the same way a value's
eviction costs what recomputing it takes, by the demands on it. That is what evictions one at a time (`fitting`) can't
see: near the floor of a deep network, which values to hold matters for all the recomputations to come.

States are columns of arrays, so that one pass over the ops serves all of them. Replay states count as held throughout.
No optimality is claimed, and a failure proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_solver.formulation.lifetimes import Lifetimes

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]
Amounts = npt.NDArray[np.int64]

_NEVER = 1e12
_MOST_CANDIDATES = 24
_SPARE = 3
"""So many times the width may reach the next stage."""
_PATIENCE = 1.0
"""Recomputes in one stage, as a share of the ops, before the states that are left count as going round in circles."""
_SOONEST = 0.1
"""A value that is read at once counts as that far away."""


@dataclass(frozen=True, kw_only=True)
class BeamRule:
    """How wide to search and what to evict: the least loss / (size ** size_power * distance ** distance_power).

    `width` states survive, each with `branching` ways to make room. `distance` counts stages until a value is needed.
    """

    width: int = 20
    branching: int = 4
    demand_power: float = 0.3
    size_power: float = 1.0
    distance_power: float = 1.0


@dataclass(frozen=True)
class _States:
    """`live[v, s]`: whether state s holds value v. `times[s]` so far; `traces[s]`: its last step."""

    live: Flags
    times: Numbers
    traces: list[int]

    def __len__(self) -> int:
        return len(self.traces)

    def select(self, chosen: Amounts) -> _States:
        return _States(self.live[:, chosen], self.times[chosen], [self.traces[s] for s in chosen])


@dataclass(frozen=True)
class _Outlook:
    """What lies ahead of each state.

    `efforts[i, s]`: time to run op i with what is missing for it; `demands[i, s]`: later first runs that need a missing
    value of op i; `weights[v, s]`: those that need value v; `next_ops[s]`: what to run now; `scores[s]`: the promise.
    """

    efforts: Numbers
    demands: Numbers
    weights: Numbers
    next_ops: Amounts
    scores: Numbers

    def select(self, chosen: Amounts) -> _Outlook:
        return _Outlook(
            self.efforts[:, chosen],
            self.demands[:, chosen],
            self.weights[:, chosen],
            self.next_ops[chosen],
            self.scores[chosen],
        )


class BeamSearch:
    """Schedules of one graph within `budget_bytes`."""

    def __init__(self, lifetimes: Lifetimes, budget_bytes: int) -> None:
        graph = lifetimes.graph
        self.lifetimes = lifetimes
        self.count = len(graph)
        self.times = np.array([op.time_ns for op in graph.ops]) / max(1, graph.total_time_ns)
        self.sizes = np.array(graph.sizes, dtype=np.int64)
        self.workspaces = np.array([op.workspace_bytes for op in graph.ops], dtype=np.int64)
        self.producer = np.array(graph.producer, dtype=np.int64)
        self.last_use = np.array(lifetimes.last_use, dtype=np.int64)
        self.reads = _as_flags(lifetimes.reads, len(graph.sizes))
        self.writes = _as_flags(lifetimes.writes, len(graph.sizes))
        lasting = [
            sum(graph.sizes[v] for v in graph.written_by(op) if lifetimes.is_lasting[v]) for op in range(self.count)
        ]
        states = sum(op.recompute_state_bytes for op in graph.ops)
        room = budget_bytes - graph.fixed_bytes - states - np.cumsum([0, *lasting])
        self.room_for_first_run: list[int] = room[1:].tolist()
        """At each stage, lasting values taken off: for its own op, whose lasting values are among them."""
        self.room_for_recompute: list[int] = room[:-1].tolist()
        self.steps: list[tuple[int, int]] = []

    def schedule(self, rule: BeamRule, *, should_stop: Callable[[], bool]) -> list[int] | None:
        """A schedule that fits, or None if every state ran into a dead end or `should_stop` turned true."""
        self.steps = [(-1, -1)]
        states = _States(np.zeros((len(self.sizes), 1), dtype=bool), np.zeros(1), [0])
        for stage in range(self.count):
            found = self._pass_stage(stage, states, rule, should_stop)
            if found is None:
                return None
            states = found
        return self._schedule_of(states.traces[int(np.argmin(states.times))])

    def _schedule_of(self, step: int) -> list[int]:
        ops = []
        while step:
            step, op = self.steps[step]
            ops.append(op)
        ops.reverse()
        return ops

    def _pass_stage(
        self, stage: int, states: _States, rule: BeamRule, should_stop: Callable[[], bool]
    ) -> _States | None:
        """The states after the first run of op `stage`, by promise; None if there is none."""
        states.live[self.last_use < stage] = False
        if self._can_run_at_once(stage, states):
            return self._run_in_all(stage, states)
        ahead = self._ahead(stage)
        done: list[_Child] = []
        for _ in range(1 + int(_PATIENCE * self.count)):
            if should_stop():
                return None
            outlook = self._look(ahead, states, rule)
            states.live[(outlook.weights == 0) & states.live] = False
            kept = self._best(states, outlook, rule.width)
            if not len(kept):
                break
            states, outlook = states.select(kept), outlook.select(kept)
            waiting: list[_Child] = []
            for child in self._children(ahead, states, outlook, rule):
                (done if child.op == stage else waiting).append(child)
            if not waiting or len(done) >= _SPARE * rule.width:
                break
            states = _gather(waiting)
        done.sort(key=lambda child: child.score)
        return _gather(done[: _SPARE * rule.width]) if done else None

    def _can_run_at_once(self, stage: int, states: _States) -> bool:
        if not states.live[self.reads[stage]].all():
            return False
        held = states.live & ~self.writes[stage][:, None]
        needed = self.sizes @ held + self.sizes[self.writes[stage]].sum() + self.workspaces[stage]
        return bool((needed <= self.room_for_first_run[stage]).all())

    def _run_in_all(self, op: int, states: _States) -> _States:
        states.live[self.writes[op]] = True
        return _States(states.live, states.times, [self._note(trace, op) for trace in states.traces])

    def _note(self, trace: int, op: int) -> int:
        self.steps.append((trace, op))
        return len(self.steps) - 1

    def _look(self, ahead: _Ahead, states: _States, rule: BeamRule) -> _Outlook:
        stage = ahead.stage
        missing = ~states.live
        efforts = np.zeros((self.count, len(states)))
        to_bring = np.zeros(missing.shape)
        for op in ahead.ops:
            reads = self.lifetimes.reads[op]
            efforts[op] = self.times[op] if self.lifetimes.may_rerun[op] else _NEVER
            if reads:
                efforts[op] += to_bring[list(reads)].max(axis=0)
            for value in self.lifetimes.writes[op]:
                to_bring[value] = efforts[op] * missing[value]
        demands = np.zeros(efforts.shape)
        passed_on = np.zeros(missing.shape)
        is_needed = np.zeros(missing.shape, dtype=bool)
        is_needed[self.reads[stage]] = True
        next_ops = np.full(len(states), stage)
        for op in reversed(ahead.ops):
            is_next = np.zeros(len(states), dtype=bool)
            for value in self.lifetimes.writes[op]:
                np.maximum(demands[op], (ahead.readers[value] + passed_on[value]) * missing[value], out=demands[op])
                is_next |= is_needed[value] & missing[value]
            for value in self.lifetimes.reads[op]:
                np.maximum(passed_on[value], demands[op], out=passed_on[value])
                is_needed[value] |= is_next
            next_ops[is_next] = op
        scores = states.times + self.times @ np.where(demands > 0, demands**rule.demand_power, 0.0)
        scores[((demands > 0) & (efforts >= _NEVER)).any(axis=0)] = np.inf
        return _Outlook(efforts, demands, ahead.readers[:, None] + passed_on, next_ops, scores)

    def _ahead(self, stage: int) -> _Ahead:
        graph = self.lifetimes.graph
        readers = np.zeros(len(self.sizes))
        soonest = np.full(len(self.sizes), _NEVER)
        for value in np.flatnonzero((self.producer < stage) & (self.last_use >= stage)):
            later = [reader for reader in graph.readers[value] if reader >= stage]
            readers[value] = len(later)
            soonest[value] = min(later, default=_NEVER)
        wanted = readers > 0
        ops = []
        for op in range(stage - 1, -1, -1):
            if any(wanted[value] for value in self.lifetimes.writes[op]):
                ops.append(op)
                wanted[list(self.lifetimes.reads[op])] = True
        ops.reverse()
        return _Ahead(stage, ops, readers, soonest)

    def _best(self, states: _States, outlook: _Outlook, width: int) -> Amounts:
        """The `width` most promising states, without those that hold the same as a faster one."""
        held = np.packbits(states.live, axis=0)
        seen: set[bytes] = set()
        kept: list[int] = []
        for s in np.argsort(outlook.scores, kind="stable"):
            key = held[:, s].tobytes()
            if len(kept) == width or outlook.scores[s] == np.inf:
                break
            if key not in seen:
                seen.add(key)
                kept.append(int(s))
        return np.array(kept, dtype=np.int64)

    def _children(self, ahead: _Ahead, states: _States, outlook: _Outlook, rule: BeamRule) -> list[_Child]:
        """Each state after its next run, once for each way to make room for it."""
        losses = self._losses(ahead, states, outlook, rule)
        children = []
        for s in range(len(states)):
            op = int(outlook.next_ops[s])
            held = states.live[:, s] & ~self.writes[op]
            room = (self.room_for_first_run if op == ahead.stage else self.room_for_recompute)[ahead.stage]
            excess = int(self.sizes @ (held | self.writes[op])) + int(self.workspaces[op]) - room
            for evicted in self._ways_to_free(excess, np.where(held & ~self.reads[op], losses[:, s], np.inf), rule):
                live = held | self.writes[op]
                live[evicted] = False
                time = float(states.times[s]) + (float(self.times[op]) if op != ahead.stage else 0.0)
                children.append(_Child(live, time, self._note(states.traces[s], op), op, float(outlook.scores[s])))
        return children

    def _losses(self, ahead: _Ahead, states: _States, outlook: _Outlook, rule: BeamRule) -> Numbers:
        """What evicting each value loses, by the rule, for its size and the time until it is needed."""
        next_use = np.repeat(ahead.soonest[:, None], len(states), axis=1)
        for op in reversed(ahead.ops):
            soonest = np.full(len(states), _NEVER)
            for value in self.lifetimes.writes[op]:
                np.minimum(soonest, np.where(states.live[value], _NEVER, next_use[value]), out=soonest)
            for value in self.lifetimes.reads[op]:
                np.minimum(next_use[value], soonest, out=next_use[value])
        already = outlook.demands[self.producer] ** rule.demand_power * (outlook.demands[self.producer] > 0)
        more = np.maximum(outlook.weights**rule.demand_power - already, 0.0)
        losses = more * outlook.efforts[self.producer]
        losses[outlook.efforts[self.producer] >= _NEVER] = np.inf
        losses /= np.maximum(self.sizes, 1)[:, None] ** rule.size_power
        return losses / np.maximum(next_use - ahead.stage, _SOONEST) ** rule.distance_power

    def _ways_to_free(self, excess: int, losses: Numbers, rule: BeamRule) -> list[list[int]]:
        """Sets of values whose eviction frees `excess` bytes: each of the cheapest first, then what else is cheap."""
        if excess <= 0:
            return [[]]
        candidates = [int(v) for v in np.argsort(losses, kind="stable")[:_MOST_CANDIDATES] if losses[v] < np.inf]
        ways: list[list[int]] = []
        for first in candidates[: rule.branching]:
            evicted, freed = [first], int(self.sizes[first])
            for value in candidates:
                if freed >= excess:
                    break
                if value != first:
                    evicted.append(value)
                    freed += int(self.sizes[value])
            if freed < excess:
                continue
            for value in sorted(evicted, key=lambda value: -losses[value] * self.sizes[value]):
                if freed - int(self.sizes[value]) >= excess:
                    evicted.remove(value)
                    freed -= int(self.sizes[value])
            evicted.sort()
            if evicted not in ways:
                ways.append(evicted)
        return ways


@dataclass(frozen=True)
class _Ahead:
    """What first runs from `stage` on need of what ran before.

    `ops`: those that may have to run again, in order. `readers[v]`: first runs to come that read value v, and
    `soonest[v]` the first of them.
    """

    stage: int
    ops: list[int]
    readers: Numbers
    soonest: Numbers


@dataclass(frozen=True)
class _Child:
    """A state after a run of `op`, with the promise of the state before."""

    live: Flags
    time: float
    trace: int
    op: int
    score: float


def _gather(children: list[_Child]) -> _States:
    return _States(
        np.stack([child.live for child in children], axis=1),
        np.array([child.time for child in children]),
        [child.trace for child in children],
    )


def _as_flags(values_of: tuple[tuple[int, ...], ...], count: int) -> Flags:
    flags = np.zeros((len(values_of), count), dtype=bool)
    for op, values in enumerate(values_of):
        flags[op, list(values)] = True
    return flags
