"""From a model's solution to a schedule: recompute what is missing, as late as possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.formulation.memory_cuts import ONE, Cover, CutModel, Slot
from remat_solver.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What an integral solution decides at one slot: the values in memory, and whether its op runs."""

    slot: Slot
    kept: frozenset[int]
    runs: bool


def read_decisions(model: CutModel, x: Sequence[float]) -> list[Decision]:
    """The decisions of a solution `x`, by slot; columns are rounded to 0 or 1."""
    return [
        Decision(
            slot=slot,
            kept=frozenset(value for value, column in kept.items() if column == ONE or x[column] > 0.5),
            runs=executed is not None and (executed == ONE or x[executed] > 0.5),
        )
        for slot, kept, executed in zip(model.slots, model.kept, model.executed, strict=True)
    ]


def overfull(graph: Graph, decisions: Sequence[Decision], budget_bytes: int) -> list[Cover]:
    """The decisions that exceed the budget in exact integers, replay states left out."""
    covers = []
    for decision in decisions:
        stage, op = decision.slot
        first_computed = stage + 1 if op == stage else stage
        lasting = {v for v in range(graph.first_value[first_computed]) if graph.is_output[v]}
        held = decision.kept | lasting
        running = 0
        if decision.runs:
            held |= set(graph.written_by(op))
            running = graph.ops[op].workspace_bytes
        if graph.fixed_bytes + running + sum(graph.sizes[value] for value in held) > budget_bytes:
            covers.append(Cover(slot=decision.slot, values=decision.kept, runs=decision.runs))
    return covers


def build_schedule(lifetimes: Lifetimes, decisions: Sequence[Decision]) -> list[int]:
    """A schedule that has in memory, at each slot, what the decision says.

    Between two slots everything computed is kept, so that no op runs twice there; what dies earlier
    is found by whoever replays the schedule. In each stage, and before each slot, the ops that are
    missing run in index order. The schedule always runs; whether it fits is another matter. Its time
    is at most the objective of the solution.
    """
    builder = _ScheduleBuilder(lifetimes)
    by_stage: dict[int, list[Decision]] = {}
    for decision in decisions:
        by_stage.setdefault(decision.slot[0], []).append(decision)
    for stage in range(len(lifetimes.graph)):
        builder.run_stage(stage, by_stage.get(stage, []))
    return builder.schedule


class _ScheduleBuilder:
    def __init__(self, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        self.producer = lifetimes.graph.producer
        self.present: set[int] = set()
        self.schedule: list[int] = []

    def run_stage(self, stage: int, decisions: Sequence[Decision]) -> None:
        ends_in_slot = False
        for decision in decisions:
            op = decision.slot[1]
            ends_in_slot = op == stage
            wanted = [v for v in decision.kept if self.producer[v] != op]
            if decision.runs:
                wanted.extend(self.lifetimes.reads[op])
                self.bring(wanted)
                self.run(op)
            else:
                self.bring(decision.kept)
            self.present &= decision.kept
        if not ends_in_slot:
            self.bring(self.lifetimes.reads[stage])
            self.run(stage)

    def bring(self, values: Iterable[int]) -> None:
        """Runs again, in index order, whatever it takes to have `values` in memory."""
        missing = [value for value in values if value not in self.present]
        ops: set[int] = set()
        while missing:
            op = self.producer[missing.pop()]
            if op not in ops:
                ops.add(op)
                missing.extend(value for value in self.lifetimes.reads[op] if value not in self.present)
        for op in sorted(ops):
            self.run(op)

    def run(self, op: int) -> None:
        self.schedule.append(op)
        self.present.update(self.lifetimes.writes[op])
