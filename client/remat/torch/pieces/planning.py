"""From a step and a budget to a choice for all pieces whose measured peak is within the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remat.torch.allocation import main_device, tensors_in
from remat.torch.both_ways import run_once, run_unmeasured
from remat.torch.eager.draws import MEASURED, full_draws, highest_peak, in_draw, leave_behind
from remat.torch.eager.kept import bytes_kept_by
from remat.torch.intervals import IntervalWatcher
from remat.torch.joint_capture import compiled_call
from remat.torch.pieces.plan import PiecePlan, PiecesPlan
from remat.torch.pieces.runtime import Pieces
from remat.torch.pieces.ways import FORWARD, WAITING, Schedule, ways_of
from remat.torch.resident import fixed_bytes, model_tensors
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.choices import Role, Stretch, Way, choose_ways, peak_of
from remat_solver.errors import ApplyError, InfeasibleBudget
from remat_solver.graph import Graph

MAX_ROUNDS = 3
"""How often steps are run in search of graphs, each time in other draws; the last time must bring none."""
OTHER_DRAWS = 100
MAX_TRIALS = 3
"""Plans that are compiled and measured; each time the question is shifted by what the last one was off by."""
NEGLIGIBLE = 0.002
"""A piece that saves less than this share of the peak is not worth several ways to run."""
PRECISION = {"gap": 0.02, "time_limit_s": 30.0}
"""What is asked of the solver, for all pieces together, unless the caller says otherwise."""

Measure = Callable[[Graph], Graph]
Call = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The compiled step and what is known of it."""

    call: Call
    plan: PiecesPlan


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """What all trials of one step have in common."""

    step: Step
    draws: Sequence[int]
    device: torch.device
    measure: Measure
    fixed_bytes: int
    kept_bytes: int

    def compiled(self, schedules: Mapping[str, tuple[int, ...]]) -> tuple[Pieces, Call]:
        """The step, compiled and run until nothing new comes up; raises `ApplyError` if that never ends."""
        pieces = Pieces(measure=self.measure, schedules=schedules)
        call = compiled_call(self.step.model, pieces.backend(), self.step.loss_fn, one_graph=False)
        for turn in range(MAX_ROUNDS):
            known = len(pieces.graphs)
            for draw in self.draws:
                with in_draw(draw + turn * OTHER_DRAWS):
                    run_unmeasured(self.step, call, None)
            if len(pieces.graphs) == known:
                return pieces, call
        raise ApplyError(
            f"every step brings other graphs ({len(pieces.graphs)} after {MAX_ROUNDS * len(self.draws)} steps): the "
            "shapes inside the model follow from the data.",
            hint='Compile with mode="eager", which captures nothing.',
        )

    def peak(self, call: Call) -> int:
        """What to expect of the peak with everything included, from a run in each draw."""
        peaks = []
        for draw in self.draws:
            with in_draw(draw):
                peaks.append(run_once(self.step, call, None).peak_bytes_above_start)
        return self.fixed_bytes + self.kept_bytes + highest_peak(peaks)

    def stretches(self, pieces: Pieces, call: Call) -> list[tuple[int, list[tuple[int, str]]]]:
        """The stretches of a step in which nothing is saved: the peak of each, and the roles of graphs, by number."""
        pieces.watcher = watcher = IntervalWatcher(self.device)
        try:
            with in_draw(self.draws[0]):
                watcher.run(lambda: run_unmeasured(self.step, call, None))
        finally:
            pieces.watcher = None
        base = self.fixed_bytes + self.kept_bytes
        return [
            (base + peak, [_role(name) for name in held])
            for peak, held in zip(watcher.peaks_bytes, watcher.held, strict=True)
        ]


def make_plan(step: Step, budget: Budget, *, reserve_bytes: int, measure: Measure, **solve_fields: Any) -> Planned:
    """Compiles `step` so that its measured peak is within the budget. The caller puts the model's state back.

    Raises `ApplyError` where nothing has a backward to plan, or graphs never cease to come, and `InfeasibleBudget`
    where no trial fits.
    """
    fields = {**PRECISION, **solve_fields}
    device = main_device(step.model.parameters())
    tensors = [*model_tensors(step.model), *tensors_in((step.args, dict(step.kwargs or {})))]
    resident = fixed_bytes(tensors, [], step.optimizer, device) + reserve_bytes
    with in_draw(0):
        kept_bytes = bytes_kept_by(lambda: leave_behind(step), device)
    draws = full_draws(step)[:MEASURED]
    bench = _Bench(step=step, draws=draws, device=device, measure=measure, fixed_bytes=resident, kept_bytes=kept_bytes)
    pieces, call = bench.compiled({})
    if not pieces.graphs:
        raise ApplyError(
            "PyTorch captures no graph of the step that has a backward.",
            hint='Call the model in training mode, or compile with mode="eager", which captures nothing.',
        )
    found = bench.stretches(pieces, call)
    graphs = list({graph.structure_hash: graph for graph in pieces.graphs}.values())
    kinds = [graph.structure_hash for graph in graphs]
    kind_of = [kinds.index(graph.structure_hash) for graph in pieces.graphs]
    stretches = tuple(
        Stretch(base_bytes=peak, roles=tuple((kind_of[number], role) for number, role in roles))
        for peak, roles in found
    )
    total_ops = sum(len(graph) for graph in graphs)
    limits_s = [fields["time_limit_s"] * len(graph) / total_ops for graph in graphs]
    negligible = int(NEGLIGIBLE * max(stretch.base_bytes for stretch in stretches))
    schedules = tuple(
        tuple(ways_of(graph, negligible_bytes=negligible, **{**fields, "time_limit_s": limit_s}))
        for graph, limit_s in zip(graphs, limits_s, strict=True)
    )
    calls = _calls(stretches)
    ways = tuple(
        tuple(_as_way(schedule, known[0], calls[kind]) for schedule in known) for kind, known in enumerate(schedules)
    )
    search = _Search(
        bench=bench, graphs=tuple(graphs), schedules=schedules, ways=ways, stretches=stretches, fields=fields
    )
    return search.best(budget, calls)


def _calls(stretches: Sequence[Stretch]) -> Counter[int]:
    """How often each part's forward begins."""
    calls = Counter[int]()
    before = Counter[Role]()
    for stretch in stretches:
        now = Counter(stretch.roles)
        calls.update(part for part, role in (now - before).elements() if role == FORWARD)
        before = now
    return calls


def _as_way(schedule: Schedule, least: Schedule, calls: int) -> Way:
    """What the schedule takes beyond the one with nothing saved."""
    extra = {role: held - least.bytes_by_role[role] for role, held in schedule.bytes_by_role.items()}
    return Way(time_ns=calls * schedule.recompute_ns, bytes_by_role=extra)


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Trials of choices for one step. Its parts are graphs of distinct structure; those of one run in one way."""

    bench: _Bench
    graphs: tuple[Graph, ...]
    schedules: tuple[tuple[Schedule, ...], ...]
    ways: tuple[tuple[Way, ...], ...]
    stretches: tuple[Stretch, ...]
    fields: dict[str, Any]

    def best(self, budget: Budget, calls: Counter[int]) -> Planned:
        """The first choice whose measured peak is within the budget, compiled."""
        store_all = peak_of([ways[-1] for ways in self.ways], self.stretches)
        budget_bytes = asked = budget.in_bytes(store_all)
        choosing = {name: value for name, value in self.fields.items() if name != "gap"}  # that is of a plan
        least_seen: int | None = None
        for trial in range(1, MAX_TRIALS + 1):
            try:
                chosen = choose_ways(self.ways, self.stretches, budget_bytes=asked, **choosing)
            except InfeasibleBudget:
                if least_seen is None:
                    raise
                break
            pieces, call = self.bench.compiled(self._steps(chosen))
            measured = self.bench.peak(call)
            least_seen = measured if least_seen is None else min(least_seen, measured)
            if measured <= budget_bytes:
                pieces.complete = True
                plan = PiecesPlan(
                    pieces=self._pieces(chosen, calls),
                    budget_bytes=budget_bytes,
                    fixed_bytes=self.bench.fixed_bytes,
                    kept_bytes=self.bench.kept_bytes,
                    store_all_peak_bytes=store_all,
                    predicted_peak_bytes=self._peak(chosen),
                    measured_peak_bytes=measured,
                    trials=trial,
                )
                return Planned(call=call, plan=plan)
            asked -= measured - budget_bytes
        raise InfeasibleBudget(
            f"pieces mode found no plan within {budget_bytes} bytes: the least peak that it measured is {least_seen}.",
            hint='Raise the budget, or compile with mode="eager".',
            budget_bytes=budget_bytes,
            known_feasible_bytes=least_seen,
            proof_scope="order",
        )

    def _peak(self, chosen: Sequence[int]) -> int:
        return peak_of([ways[way] for ways, way in zip(self.ways, chosen, strict=True)], self.stretches)

    def _steps(self, chosen: Sequence[int]) -> dict[str, tuple[int, ...]]:
        return {
            graph.structure_hash: known[way].steps
            for graph, known, way in zip(self.graphs, self.schedules, chosen, strict=True)
        }

    def _pieces(self, chosen: Sequence[int], calls: Counter[int]) -> tuple[PiecePlan, ...]:
        return tuple(
            PiecePlan(
                ops=len(self.graphs[part]),
                calls=calls[part],
                ways=len(self.ways[part]),
                saved_bytes=self.ways[part][way].bytes_by_role[WAITING],
                recompute_ns=self.schedules[part][way].recompute_ns,
            )
            for part, way in enumerate(chosen)
        )


def _role(name: str) -> Role:
    number, role = name.split()
    return int(number), role
