"""The exact optimum over Checkmate's class of schedules, found without any formulation.

The class: stage t runs any subset of the recomputable ops before t, in index order, and then op t
for the first time (Jain et al., MLSys 2020, section 4: frontier-advancing stages).

`exhaustive_optimum` is a dynamic program that walks schedules from their end to their start. Seen
backwards, what is in memory is known: `wanted`, the values whose present copies some later step
reads, and `again`, the ops that run again later (whose replay state is therefore held). One step
back over a run of op i, in memory are wanted + what i reads and writes + the outputs of ops that
have run + workspace + held state; before it, wanted becomes (wanted - writes(i)) + reads(i). So the
cheapest way to each (slot, wanted, again) is enough to know. Two kinds of states are left out, neither
of which can be better: runs of which no value is wanted (they cost time, and before them at least as
much is wanted), and states dominated by a cheaper one that wants a subset and holds a subset (the same
earlier runs fit for it too, since memory in use grows with both sets).

`naive_optimum` enumerates the class and asks the referee: the check of the check, for <= 5 ops.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from remat_solver.graph import Graph
from remat_solver.simulate import simulate


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The least time of a schedule within the budget, and one such schedule."""

    time_ns: int
    schedule: tuple[int, ...]


State = tuple[frozenset[int], frozenset[int]]
"""(wanted, again): see above."""
Runs = tuple[int, tuple[int, ...]]
"""The time of the runs after a point, and those runs, last first."""


def exhaustive_optimum(graph: Graph, budget_bytes: int) -> Optimum | None:
    """The optimum over Checkmate's class, None if no schedule of the class fits."""
    walk = _BackwardWalk(graph, budget_bytes)
    states: dict[State, Runs] = {(frozenset(), frozenset()): (0, ())}
    for stage in range(len(graph) - 1, -1, -1):
        states = walk.run_all(states, stage, stage)
        for op in range(stage - 1, -1, -1):
            if graph.ops[op].recomputable:
                states = walk.undominated({**states, **walk.merge(states, walk.run_all(states, stage, op))})
    if not states:
        return None
    time_ns, runs = min(states.values())
    return Optimum(time_ns=time_ns, schedule=runs[::-1])


class _BackwardWalk:
    def __init__(self, graph: Graph, budget_bytes: int) -> None:
        self.graph = graph
        self.budget_bytes = budget_bytes
        self.outputs = frozenset(graph.outputs)

    def run_all(self, states: dict[State, Runs], stage: int, op: int) -> dict[State, Runs]:
        """Every state from which one step back over a run of `op` in `stage` leads to one of `states` and fits."""
        graph = self.graph
        writes = frozenset(graph.written_by(op)) - self.outputs
        reads = frozenset(graph.ops[op].reads) - self.outputs
        first = graph.first_value[stage + 1 if op == stage else stage]
        resident = graph.fixed_bytes + graph.ops[op].workspace_bytes
        resident += sum(graph.sizes[value] for value in self.outputs if value < first)
        found: dict[State, Runs] = {}
        for (wanted, again), (time_ns, runs) in states.items():
            if op != stage:
                if not wanted & writes:
                    continue
                again = again | {op}
            held = sum(graph.ops[i].recompute_state_bytes for i in again if i <= (stage if op == stage else stage - 1))
            if resident + held + sum(graph.sizes[v] for v in wanted | writes | reads) > self.budget_bytes:
                continue
            before = (wanted - writes) | reads, again
            candidate = time_ns + graph.ops[op].time_ns, (*runs, op)
            if before not in found or candidate < found[before]:
                found[before] = candidate
        return found

    @staticmethod
    def merge(states: dict[State, Runs], others: dict[State, Runs]) -> dict[State, Runs]:
        """The others, without those that `states` has cheaper."""
        return {state: runs for state, runs in others.items() if state not in states or runs < states[state]}

    @staticmethod
    def undominated(states: dict[State, Runs]) -> dict[State, Runs]:
        """Without the states that cost no less, want no less and hold no less than another."""
        kept: dict[State, Runs] = {}
        for (wanted, again), runs in sorted(states.items(), key=lambda item: (item[1][0], len(item[0][0]))):
            if not any(w <= wanted and a <= again and r[0] <= runs[0] for (w, a), r in kept.items()):
                kept[wanted, again] = runs
        return kept


def naive_optimum(graph: Graph, budget_bytes: int) -> Optimum | None:
    """The same by enumeration: 2^(n(n-1)/2) schedules, each replayed by the referee."""
    best: Optimum | None = None
    for choice in itertools.product(*(_stage_runs(graph, stage) for stage in range(len(graph)))):
        schedule = tuple(itertools.chain.from_iterable(choice))
        time_ns = sum(graph.ops[op].time_ns for op in schedule)
        if best is not None and time_ns >= best.time_ns:
            continue
        if simulate(graph, schedule).peak_bytes <= budget_bytes:
            best = Optimum(time_ns=time_ns, schedule=schedule)
    return best


def _stage_runs(graph: Graph, stage: int) -> list[tuple[int, ...]]:
    earlier = [op for op in range(stage) if graph.ops[op].recomputable]
    subsets = itertools.chain.from_iterable(itertools.combinations(earlier, size) for size in range(len(earlier) + 1))
    return [(*subset, stage) for subset in subsets]
