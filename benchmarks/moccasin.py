"""A rival's model: retention intervals under a cumulative memory constraint, solved by CP-SAT.

The idea is that of MOCCASIN (Bartan et al., ICML 2023). Time is a line of events: stage j holds one event for every op
up to j, in index order, the last of which is the first run of op j. Every op runs at its own event of its own
stage, and at up to `runs - 1` further events of later stages. Each run of an op opens a retention interval, which
lasts to the last read that it serves. A cumulative constraint bounds the memory held at any event, and the time of all
runs is least. As in the paper a first phase looks for a schedule that fits, from store-all, by the least excess over
the budget, and a second phase starts from there.

Written for our graphs, where the paper has one value per op: every value of an op has an interval of its own, which
starts with the op's run and ends by itself; an op's workspace lasts one event; an output is held from its first run to
the end; replay state is held from the first run to the last. So its schedules are those of Checkmate's class with at
most `runs` runs of each op, and what it proves holds for that class.

python -m benchmarks.moccasin reads questions as lines of JSON and answers in kind; `benchmarks.cp_sat` is its caller.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from ortools.sat.python import cp_model

from benchmarks.cp_sat import Answer
from remat_solver.errors import InvalidPlan
from remat_solver.files import parse_json
from remat_solver.graph import Graph
from remat_solver.simulate import simulate, store_all_schedule


def solve_by_intervals(
    graph: Graph, budget_bytes: int, *, runs: int = 2, time_limit_s: float = 60.0, workers: int = 2, seed: int = 0
) -> Answer:
    """Least time within the budget, each op at most `runs` times. Its schedule is refereed (`InvalidPlan`)."""
    start = time.perf_counter()
    model = _IntervalModel(graph, budget_bytes, runs) if budget_bytes >= graph.fixed_bytes else None
    if model is None:
        return _ended("infeasible", start)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    model.hint_store_all()
    model.program.minimize(model.excess)
    ending = _run(solver, model, start + time_limit_s)
    if ending == cp_model.INFEASIBLE or (ending == cp_model.OPTIMAL and solver.value(model.excess)):
        return _ended("infeasible", start)
    if ending not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or solver.value(model.excess):
        return _ended("no_plan_in_time", start, bound_ns=graph.total_time_ns)
    fitting = model.read_schedule(solver)
    model.hint_last(solver)
    model.program.add(model.excess == 0)
    model.program.minimize(model.extra_time)
    ending = _run(solver, model, start + time_limit_s)
    if ending not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return _refereed(graph, budget_bytes, fitting, "feasible", graph.total_time_ns, start)
    bound_ns = graph.total_time_ns + model.time_unit * max(0, round(solver.best_objective_bound))
    status = "optimal" if ending == cp_model.OPTIMAL else "feasible"
    return _refereed(graph, budget_bytes, model.read_schedule(solver), status, bound_ns, start)


def _run(solver: cp_model.CpSolver, model: _IntervalModel, stop_s: float) -> int:
    solver.parameters.max_time_in_seconds = max(0.01, stop_s - time.perf_counter())
    return int(solver.solve(model.program))


def _ended(status: str, start: float, *, bound_ns: int | None = None) -> Answer:
    return Answer(
        status=status, schedule=None, time_ns=None, bound_ns=bound_ns, seconds=round(time.perf_counter() - start, 3)
    )


def _refereed(
    graph: Graph, budget_bytes: int, schedule: tuple[int, ...], status: str, bound_ns: int, start: float
) -> Answer:
    """The answer with the simulator's time; raises `InvalidPlan` where the simulator finds it too big."""
    replay = simulate(graph, schedule)
    if replay.peak_bytes > budget_bytes:
        raise InvalidPlan(f"CP-SAT's schedule takes {replay.peak_bytes} bytes; the budget is {budget_bytes}.")
    if replay.time_ns < bound_ns:
        raise InvalidPlan(f"CP-SAT's schedule takes {replay.time_ns} ns, less than its bound of {bound_ns} ns.")
    seconds = round(time.perf_counter() - start, 3)
    return Answer(status=status, schedule=schedule, time_ns=replay.time_ns, bound_ns=bound_ns, seconds=seconds)


@dataclass(kw_only=True)
class _Run:
    """One possible run of an op: its event, whether it takes place, and the last event of each value it writes."""

    event: cp_model.LinearExprT
    is_there: cp_model.IntVar | None
    """None for the first run, which always takes place."""
    ends: dict[int, cp_model.LinearExprT] = field(default_factory=dict)


class _IntervalModel:
    """The program of one graph and budget; both phases solve it, with different objectives."""

    def __init__(self, graph: Graph, budget_bytes: int, runs: int) -> None:
        self.graph = graph
        self.program = cp_model.CpModel()
        self.horizon = self.first_event(len(graph) - 1)
        self.hints: dict[int, tuple[cp_model.IntVar, int]] = {}
        self.memory_unit = math.gcd(graph.fixed_bytes, budget_bytes, *graph.sizes, *_extra_bytes(graph)) or 1
        self.time_unit = math.gcd(*(op.time_ns for op in graph.ops)) or 1
        self.intervals: list[cp_model.IntervalVar] = []
        self.demands: list[int] = []
        self.last_read = self._last_reads()
        self.runs = [self._runs_of(op, runs) for op in range(len(graph))]
        for op in range(len(graph)):
            self._hold(op)
            self._replace(op)
        for op in range(len(graph)):
            self._read(op)
        most = simulate(graph, store_all_schedule(graph)).peak_bytes + sum(graph.sizes) + sum(_extra_bytes(graph))
        self.excess = self._variable(0, most // self.memory_unit, "excess")
        self.program.add_cumulative(
            self.intervals, self.demands, (budget_bytes - graph.fixed_bytes) // self.memory_unit + self.excess
        )
        self.extra_time = sum(
            (graph.ops[op].time_ns // self.time_unit) * run.is_there
            for op, possible in enumerate(self.runs)
            for run in possible
            if run.is_there is not None
        )

    @staticmethod
    def event(stage: int, op: int) -> int:
        """The place of `op` in `stage` on the line of events."""
        return stage * (stage + 1) // 2 + op

    def first_event(self, op: int) -> int:
        """The event of the first run of `op`."""
        return self.event(op, op)

    def hint_store_all(self) -> None:
        """Points the search at the schedule without recomputation."""
        for possible in self.runs:
            for run in possible:
                if run.is_there is not None:
                    self._hint(run.is_there, 0)
        for value, event in enumerate(self.last_read):
            end = self.runs[self.graph.producer[value]][0].ends.get(value)
            if isinstance(end, cp_model.IntVar):
                self._hint(end, event)
        self._put_hints()

    def hint_last(self, solver: cp_model.CpSolver) -> None:
        """Points the search at the solver's last solution."""
        values = list(solver.response_proto.solution)
        for index in range(len(values)):
            variable = self.program.get_int_var_from_proto_index(index)
            self.hints[index] = (variable, values[index])
        self._put_hints()

    def read_schedule(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
        """The runs that take place, in the order of their events."""
        runs = [
            (solver.value(run.event), op)
            for op, possible in enumerate(self.runs)
            for run in possible
            if run.is_there is None or solver.value(run.is_there)
        ]
        return tuple(op for _, op in sorted(runs))

    def _last_reads(self) -> list[int]:
        graph = self.graph
        return [
            self.first_event(max(readers, default=graph.producer[value])) for value, readers in enumerate(graph.readers)
        ]

    def _runs_of(self, op: int, most: int) -> list[_Run]:
        """The first run, and those that the op may have in later stages, in the order of their events."""
        runs = [_Run(event=self.first_event(op), is_there=None)]
        is_read = any(self.graph.readers[value] for value in self.graph.written_by(op))
        stages = range(op + 1, len(self.graph))
        if not self.graph.ops[op].recomputable or not is_read or not stages:
            return runs
        events = cp_model.Domain.from_values([self.event(stage, op) for stage in stages])
        for number in range(1, min(most, 1 + len(stages))):
            event = self.program.new_int_var_from_domain(events, f"event_{op}_{number}")
            is_there = self.program.new_bool_var(f"again_{op}_{number}")
            before = runs[-1]
            if before.is_there is not None:
                self.program.add_implication(is_there, before.is_there)
                self.program.add(event > before.event).only_enforce_if(is_there)
            runs.append(_Run(event=event, is_there=is_there))
        return runs

    def _hold(self, op: int) -> None:
        """What the runs of `op` hold: values, workspace, replay state."""
        graph = self.graph
        for number, run in enumerate(self.runs[op]):
            for value in graph.written_by(op):
                if graph.is_output[value]:
                    if number == 0:
                        self._demand(run, self.horizon, graph.sizes[value], f"output_{value}")
                    continue
                end: cp_model.LinearExprT = run.event
                if graph.readers[value]:
                    end = self._variable(self.first_event(op), self.horizon, f"end_{value}_{number}")
                run.ends[value] = end
                self._demand(run, end, graph.sizes[value], f"value_{value}_{number}")
            self._demand(run, run.event, graph.ops[op].workspace_bytes, f"work_{op}_{number}")
        again = self.runs[op][1:]
        if graph.ops[op].recompute_state_bytes and again:
            last = self._variable(self.first_event(op), self.horizon, f"last_{op}")
            for run in again:
                self.program.add(last >= run.event).only_enforce_if(run.is_there)
            state = _Run(event=self.first_event(op), is_there=again[0].is_there)
            self._demand(state, last, graph.ops[op].recompute_state_bytes, f"state_{op}")

    def _demand(self, run: _Run, end: cp_model.LinearExprT, size_bytes: int, name: str) -> None:
        """Memory from the run's event to the event `end`, both included."""
        if not size_bytes:
            return
        if end is run.event or isinstance(run.event, int):
            length: cp_model.LinearExprT = 1 if end is run.event else end + 1 - run.event
        else:
            length = self._variable(1, self.horizon + 1, f"length_{name}")
        if run.is_there is None:
            interval = self.program.new_interval_var(run.event, length, end + 1, name)
        else:
            interval = self.program.new_optional_interval_var(run.event, length, end + 1, run.is_there, name)
        self.intervals.append(interval)
        self.demands.append(size_bytes // self.memory_unit)

    def _replace(self, op: int) -> None:
        """A run drops what an earlier run of the op left. Holding both is never better; saying so helps."""
        for before, after in zip(self.runs[op], self.runs[op][1:], strict=False):
            for end in before.ends.values():
                self.program.add(end < after.event).only_enforce_if(after.is_there)

    def _read(self, op: int) -> None:
        """Every run of `op` lies within an interval of each value that it reads."""
        for value in self.graph.ops[op].reads:
            if self.graph.is_output[value]:
                continue
            sources = self.runs[self.graph.producer[value]]
            for reader in self.runs[op]:
                there = [] if reader.is_there is None else [reader.is_there]
                if len(sources) == 1:
                    self.program.add(sources[0].ends[value] >= reader.event).only_enforce_if(there)
                    continue
                served = [self._serves(source, value, reader) for source in sources]
                self.program.add_bool_or(served + [is_there.negated() for is_there in there])

    def _serves(self, source: _Run, value: int, reader: _Run) -> cp_model.IntVar:
        serves = self.program.new_bool_var("")
        self.program.add(source.ends[value] >= reader.event).only_enforce_if(serves)
        if source.is_there is not None:
            self.program.add_implication(serves, source.is_there)
            self.program.add(source.event < reader.event).only_enforce_if(serves)
        return serves

    def _variable(self, low: int, high: int, name: str) -> cp_model.IntVar:
        return self.program.new_int_var(low, high, name)

    def _hint(self, variable: cp_model.IntVar, value: int) -> None:
        self.hints[variable.index] = (variable, value)

    def _put_hints(self) -> None:
        self.program.clear_hints()
        for variable, value in self.hints.values():
            self.program.add_hint(variable, value)


def _extra_bytes(graph: Graph) -> list[int]:
    return [amount for op in graph.ops for amount in (op.workspace_bytes, op.recompute_state_bytes)]


def _answer(question: dict[str, Any]) -> Answer:
    graph = parse_json(Graph, question.pop("graph").encode())
    return solve_by_intervals(graph, question.pop("budget_bytes"), **question)


def main() -> int:
    """The command; any failure ends it with its traceback."""
    for line in sys.stdin:
        print(json.dumps(asdict(_answer(json.loads(line)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
