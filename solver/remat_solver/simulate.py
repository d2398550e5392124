"""The referee: replays a schedule on a graph and says exactly what it costs.

It knows the graph and nothing about how a schedule was found; no strategy shares code with it.

Rules of the machine that it replays:

* While an op runs, memory in use is `fixed_bytes`, every live value (what the op reads and writes
  among them), its workspace, and the replay state that is held.
* A value is freed right after its last use: the last read before its op runs again or the schedule
  ends. A value that nobody reads is freed right after its op.
* A recompute runs the whole op: it first drops whatever values of its op are still live, then
  replaces them.
* An output stays in memory from its first computation to the end.
* An op's `recompute_state_bytes` is held from its first run to its last recompute, if it has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from remat_solver.errors import InvalidPlan
from remat_solver.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a schedule costs. `timeline_bytes[p]` is the memory in use while step p runs."""

    timeline_bytes: tuple[int, ...]
    time_ns: int
    recompute_count: int

    @cached_property
    def peak_bytes(self) -> int:
        """The highest memory in use, `fixed_bytes` included."""
        return max(self.timeline_bytes)

    @cached_property
    def peak_step(self) -> int:
        """The first step at which the peak is reached."""
        return self.timeline_bytes.index(self.peak_bytes)


def store_all_schedule(graph: Graph) -> tuple[int, ...]:
    """Every op once, in order: the schedule without recomputation."""
    return tuple(range(len(graph)))


def simulate(graph: Graph, schedule: Sequence[int], *, any_order: bool = False) -> Replay:
    """Replays `schedule` (op indices in the order in which they run) and returns its exact cost.

    Raises `InvalidPlan` naming the step if an op runs before what it reads was computed, first runs
    come out of the graph's order, an op is missing, or an op that may not be recomputed runs twice.
    With `any_order` first runs may come in another topological order, in which only the ops of
    `Graph.keeps_its_place` stay in order among themselves.
    """
    previous_run = _check_schedule(graph, schedule, any_order=any_order)
    last_use = _last_uses(graph, schedule)
    state_changes = _state_changes(graph, schedule)
    freed_after: list[int] = [0] * len(schedule)
    live_outputs: set[int] = set()
    in_use = graph.fixed_bytes
    held_state = 0
    timeline = []
    for step, op in enumerate(schedule):
        for value in graph.written_by(op):
            if graph.is_output[value]:
                if value not in live_outputs:
                    live_outputs.add(value)
                    in_use += graph.sizes[value]
            else:
                in_use += graph.sizes[value]
                freed_after[last_use[step, value]] += graph.sizes[value]
        held_state += state_changes[step][0]
        timeline.append(in_use + held_state + graph.ops[op].workspace_bytes)
        held_state -= state_changes[step][1]
        in_use -= freed_after[step]
    return Replay(
        timeline_bytes=tuple(timeline),
        time_ns=sum(graph.ops[op].time_ns for op in schedule),
        recompute_count=sum(run is not None for run in previous_run),
    )


def _check_schedule(graph: Graph, schedule: Sequence[int], *, any_order: bool) -> list[int | None]:
    """The step of each step's previous run of the same op, or None; raises `InvalidPlan`."""
    latest: dict[int, int] = {}
    previous: list[int | None] = []
    in_order = [op for op in range(len(graph)) if not any_order or graph.keeps_its_place[op]]
    ordered = 0
    for step, op in enumerate(schedule):
        if not isinstance(op, int) or not 0 <= op < len(graph):
            raise InvalidPlan(f"step {step} runs op {op!r}; the graph has ops 0 to {len(graph) - 1}.", step=step)
        previous.append(latest.get(op))
        label = f"step {step} runs op {op} ({graph.ops[op].name!r})"
        if op in latest:
            if not graph.ops[op].recomputable:
                raise InvalidPlan(f"{label} again, but that op may not be recomputed.", step=step)
        elif not any_order or graph.keeps_its_place[op]:
            if op != in_order[ordered]:
                raise InvalidPlan(
                    f"{label} for the first time before op {in_order[ordered]}: first runs keep the order.", step=step
                )
            ordered += 1
        for value in graph.ops[op].reads:
            if graph.producer[value] not in latest:
                raise InvalidPlan(
                    f"{label} before op {graph.producer[value]}, whose value {value} it reads.", step=step
                )
        latest[op] = step
    if len(latest) != len(graph):
        missing = next(op for op in range(len(graph)) if op not in latest)
        raise InvalidPlan(f"the schedule never runs op {missing} ({graph.ops[missing].name!r}).")
    return previous


def _last_uses(graph: Graph, schedule: Sequence[int]) -> dict[tuple[int, int], int]:
    """For each (step, value that its op writes): the step after which that copy is freed."""
    latest_run: dict[int, int] = {}
    last_use: dict[tuple[int, int], int] = {}
    for step, op in enumerate(schedule):
        for value in graph.ops[op].reads:
            last_use[latest_run[graph.producer[value]], value] = step
        latest_run[op] = step
        for value in graph.written_by(op):
            last_use[step, value] = step
    return last_use


def _state_changes(graph: Graph, schedule: Sequence[int]) -> list[tuple[int, int]]:
    """Per step: the replay state that starts to be held before it, and that is let go after it."""
    first_run: dict[int, int] = {}
    last_run: dict[int, int] = {}
    for step, op in enumerate(schedule):
        first_run.setdefault(op, step)
        last_run[op] = step
    taken = [0] * len(schedule)
    released = [0] * len(schedule)
    for op, start in first_run.items():
        if last_run[op] > start:
            taken[start] += graph.ops[op].recompute_state_bytes
            released[last_run[op]] += graph.ops[op].recompute_state_bytes
    return list(zip(taken, released, strict=True))
