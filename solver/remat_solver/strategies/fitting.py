"""Makes a schedule fit a budget: evicts values when memory runs out and recomputes them when they are read.

In the manner of dynamic tensor rematerialization (Kirisame et al., ICLR 2021), which evicts the value
with the least recompute time per byte and staleness; but offline: the schedule to follow says when
each value is read next, and that takes the place of staleness. Fitting the store-all schedule gives a
first plan; fitting the schedule of a relaxed model repairs it. No optimality is claimed, and a
failure proves nothing.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.simulate import simulate
from remat_solver.strategies.cleaning import drop_unused


@dataclass(frozen=True, kw_only=True)
class EvictionRule:
    """Evict the value with the least cost / (size ** size_power * distance ** distance_power).

    `cost` is the time to recompute the value with whatever else is missing for it; `distance` is the
    number of steps until it is read next. `noise` is the standard deviation of the logarithm of a random
    factor that each value has for the whole run: other seeds, other schedules. `input_share`: a value of at most
    this share of the bytes that are made from it, and read later, may outlive its own last read: while it is there,
    they are cheap to make again.
    """

    size_power: float = 1.0
    distance_power: float = 1.0
    noise: float = 0.0
    seed: int = 0
    input_share: float = 0.0


RULES = (
    EvictionRule(),
    EvictionRule(distance_power=0.5),
    EvictionRule(distance_power=0.0),
    EvictionRule(size_power=0.5),
    EvictionRule(size_power=0.0, distance_power=1.0),
)
_CLOSURE_WORK = 300_000
"""A recompute's cost is summed over at most this / ops missing ops, but at least 64: beyond, it is high anyway."""


def fit_schedule(
    lifetimes: Lifetimes,
    schedule: Sequence[int],
    budget_bytes: int,
    *,
    rule: EvictionRule,
    should_stop: Callable[[], bool],
    patience: float = 0.15,
) -> list[int] | None:
    """A schedule like `schedule` with a peak of at most `budget_bytes`, or None if none was found.

    `patience`: give up once one step took more recomputes than 100 and this times the number of ops.
    """
    reserve = _replay_state_reserve(lifetimes, budget_bytes)
    fitted = _Fitter(lifetimes, schedule, budget_bytes - reserve, rule, should_stop, patience).fit()
    if fitted is None:
        return None
    cleaned = drop_unused(lifetimes, fitted)
    return cleaned if simulate(lifetimes.graph, cleaned).peak_bytes <= budget_bytes else None


def _replay_state_reserve(lifetimes: Lifetimes, budget_bytes: int) -> int:
    """Bytes set aside for replay states: all of them where they are small, else none and the referee decides."""
    total = sum(op.recompute_state_bytes for op in lifetimes.graph.ops)
    return total if total <= budget_bytes // 100 else 0


class _Fitter:
    def __init__(
        self,
        lifetimes: Lifetimes,
        schedule: Sequence[int],
        budget_bytes: int,
        rule: EvictionRule,
        should_stop: Callable[[], bool],
        patience: float,
    ) -> None:
        self.limit = 100 + int(patience * len(lifetimes.graph))
        self.lifetimes = lifetimes
        self.graph = lifetimes.graph
        self.sizes = lifetimes.graph.sizes
        self.producer = lifetimes.graph.producer
        self.reads = lifetimes.reads
        self.writes = lifetimes.writes
        self.schedule = schedule
        self.rule = rule
        self.should_stop = should_stop
        self.room = budget_bytes - self.graph.fixed_bytes
        self.live: set[int] = set()
        self.has_run = [False] * len(self.graph)
        self.result: list[int] = []
        self.step = 0
        self.events = self._find_events()
        self.anchor = self._find_anchors()
        self.factor = self._draw_factors()
        self.closure_limit = max(64, _CLOSURE_WORK // len(self.graph))
        self.queue: list[int] = []
        self.queue_half = 0
        self.queue_step = -len(schedule)
        self.patience = max(1, len(schedule) // 400)

    def _find_events(self) -> list[list[int]]:
        """Per value, latest first: the steps that read it, and, as ~step, those that write it again."""
        events: list[list[int]] = [[] for _ in self.sizes]
        seen = [False] * len(self.graph)
        for step, op in enumerate(self.schedule):
            for value in self.reads[op]:
                events[value].append(step)
            if seen[op]:
                for value in self.writes[op]:
                    events[value].append(~step)
            seen[op] = True
        for steps in events:
            steps.reverse()
        return events

    def _draw_factors(self) -> list[float]:
        if not self.rule.noise:
            return [1.0] * len(self.sizes)
        source = random.Random(self.rule.seed)
        return [math.exp(source.gauss(0.0, self.rule.noise)) for _ in self.sizes]

    def _find_anchors(self) -> list[int]:
        """Per op: the last step up to which the schedule keeps everything that a recompute of it ends up reading.

        That is, of values that can't be recomputed themselves: evicting what depends on one that is freed
        before it is read again would leave no way back.
        """
        anchor = [len(self.schedule)] * len(self.graph)
        for op in range(len(self.graph)):
            for value in self.reads[op]:
                producer = self.producer[value]
                if self.graph.ops[producer].recomputable:
                    anchor[op] = min(anchor[op], anchor[producer])
                else:
                    anchor[op] = min(anchor[op], self.events[value][0])
        return anchor

    def _may_evict(self, value: int, until: int) -> bool:
        """Whether `value` could be recomputed at step `until`."""
        producer = self.producer[value]
        return self.graph.ops[producer].recomputable and self.anchor[producer] >= until

    def fit(self) -> list[int] | None:
        for step, op in enumerate(self.schedule):
            self.step = step
            if step % 64 == 0 and self.should_stop():
                return None
            is_wanted = not self.has_run[op] or self._serves_later_reads(op)
            if is_wanted and not self._compute(op):
                return None
            self._pass_events(op)
        return self.result

    def _serves_later_reads(self, op: int) -> bool:
        """Whether a recompute that the schedule asks for is still needed: some value is missing and read later."""
        for value in self.writes[op]:
            events = self.events[value]
            if value not in self.live and len(events) > 1 and events[-2] >= 0:
                return True
        return False

    def _pass_events(self, op: int) -> None:
        for value in (*self.reads[op], *self.writes[op]):
            events = self.events[value]
            while events and (events[-1] if events[-1] >= 0 else ~events[-1]) <= self.step:
                events.pop()
            if value in self.live and not (self._is_read_next(value) or self._serves_recomputes(value)):
                self._drop(value)

    def _serves_recomputes(self, value: int) -> bool:
        """Whether a value that the schedule reads no more is worth keeping (see `EvictionRule.input_share`)."""
        if not self.rule.input_share or not self.graph.ops[self.producer[value]].recomputable:
            return False
        served = 0
        for reader in self.graph.readers[value]:
            if self.has_run[reader]:
                served += sum(self.sizes[made] for made in self.writes[reader] if self._is_read_next(made))
        return self.sizes[value] <= self.rule.input_share * served

    def _is_read_next(self, value: int) -> bool:
        """Whether the schedule reads the value before it writes it again."""
        events = self.events[value]
        return bool(events) and events[-1] >= 0

    def _drop(self, value: int) -> None:
        self.live.discard(value)
        self.room += self.sizes[value]

    def _compute(self, target: int) -> bool:
        """Runs `target` after whatever is missing for it, depth first. False if that can't be done."""
        stack = [target]
        limit = len(self.result) + self.limit
        while stack:
            if len(self.result) > limit or (len(self.result) % 256 == 0 and self.should_stop()):
                return False
            op = stack[-1]
            missing = [value for value in self.reads[op] if value not in self.live]
            if missing:
                needed = self.producer[self._hardest(missing)]
                if not self.graph.ops[needed].recomputable or len(stack) > len(self.graph):
                    return False
                stack.append(needed)
                continue
            if not self._run(op, stack):
                return False
            stack.pop()
        return True

    def _hardest(self, missing: list[int]) -> int:
        """The missing value to bring first: the one with the earliest producer, whose recompute reaches deepest."""
        return min(missing)

    def _run(self, op: int, stack: list[int]) -> bool:
        fresh = sum(self.sizes[value] for value in self.writes[op] if value not in self.live)
        if not self.has_run[op]:
            lasting = self.graph.first_value[op], self.graph.first_value[op + 1]
            fresh += sum(self.sizes[v] for v in range(*lasting) if self.lifetimes.is_lasting[v])
        if not self._make_room(fresh + self.graph.ops[op].workspace_bytes, op, stack):
            return False
        self.room -= fresh
        self.live.update(self.writes[op])
        self.has_run[op] = True
        self.result.append(op)
        return True

    def _make_room(self, need: int, op: int, stack: list[int]) -> bool:
        """Evicts until `need` bytes are free; what `op` reads stays, what the ops that wait for it read goes last."""
        if self.room >= need:
            return True
        waiting = {value for frame in stack[:-1] for value in self.reads[frame]}
        own = set(self.reads[op]) | set(self.writes[op])
        is_fresh = self.step - self.queue_step > self.patience
        if is_fresh:
            self._rank()
        if self._evict(need, own | waiting, leave=0 if is_fresh else self.queue_half):
            return True
        if not is_fresh:
            self._rank()
            if self._evict(need, own | waiting, leave=0):
                return True
        return self._evict_waiting(need, own, stack)

    def _evict_waiting(self, need: int, own: set[int], stack: list[int]) -> bool:
        """Evicts what the waiting ops read: first what they will bring back after what is being computed for them.

        Among these the value with the least cost per byte and distance on the stack goes first, where the
        ops on the stack count as done. An op brings its reads in ascending order; evicting a lower one for
        a higher one may go round in circles, so that these come last, and never those of the op that is next.
        """
        soon = set(stack)
        safe: dict[int, float] = {}
        risky: dict[int, float] = {}
        for depth, (frame, child) in enumerate(itertools.pairwise(stack)):
            for value in self.reads[frame]:
                producer = self.producer[value]
                if value in own or value not in self.live or not self._may_evict(value, self.step):
                    continue
                score = self._recompute_time(value, soon) / self.sizes[value] / (len(stack) - depth)
                if producer > child:
                    safe[value] = score
                    risky.pop(value, None)
                elif depth < len(stack) - 2:
                    risky[value] = score
        for cost in (safe, risky):
            for value in sorted(cost, key=lambda value: (cost[value], value)):
                self._drop(value)
                if self.room >= need:
                    return True
        return False

    def _evict(self, need: int, protected: set[int], *, leave: int) -> bool:
        """Evicts from the ranking, best victims first, down to the `leave` worst: an old one misses newer victims."""
        skipped = []
        while self.room < need and len(self.queue) > leave:
            value = self.queue.pop()
            if value in protected:
                skipped.append(value)
            elif value in self.live:
                self._drop(value)
        self.queue.extend(reversed(skipped))
        return self.room >= need

    def _rank(self) -> None:
        """Orders what is live, best victim last."""
        self.queue_step = self.step
        score: dict[int, float] = {}
        for value in self.live:
            events = self.events[value]
            if self._may_evict(value, events[-1] if self._is_read_next(value) else self.step):
                score[value] = self._score(value)
        self.queue = sorted(score, key=lambda value: (-score[value], value))
        self.queue_half = len(self.queue) // 2

    def _score(self, value: int) -> float:
        if self._is_read_next(value):
            distance = max(1, self.events[value][-1] - self.step)
        elif self._serves_recomputes(value):
            distance = 1
        else:
            return 0.0
        size = self.sizes[value]
        weight: float = size**self.rule.size_power * distance**self.rule.distance_power
        return self.factor[value] * (1 + self._recompute_time(value)) / weight

    def _recompute_time(self, value: int, soon: set[int] | frozenset[int] = frozenset()) -> int:
        """Time to have `value` again, in ns, from what else is live or written by the ops `soon`."""
        pending = [self.producer[value]]
        seen = set(pending)
        total = 0
        while pending:
            op = pending.pop()
            total += self.graph.ops[op].time_ns
            for read in self.reads[op]:
                producer = self.producer[read]
                if (
                    read not in self.live
                    and producer not in soon
                    and producer not in seen
                    and len(seen) < self.closure_limit
                ):
                    seen.add(producer)
                    pending.append(producer)
        return total
