"""Memory cuts: Checkmate's program with the memory constraint written only where it matters.

Checkmate (Jain et al., MLSys 2020, section 4) divides time into stages: stage t runs some earlier
ops again, in index order, and then op t for the first time. The **slot** (t, v), v <= t, is the
place of op v in stage t; slots are ordered lexicographically. Here some slots s_0 < ... < s_{K-1}
are chosen, s_k = (t_k, v_k); interval k lies strictly between s_{k-1} and s_k, interval 0 before the
first and interval K after the last. A slot (t, -1) is the place before stage t, where no op runs.

Columns, all in [0, 1]:

* `R[k,i]`: op i, first computed earlier, runs again at least once in interval k. It exists only if
  some place (t, i), t > i, lies in the interval. An op first computed in interval k counts as 1.
* `X[k]`, where v_k < t_k: op v_k runs again exactly at slot k. Where v_k = t_k it is the constant 1.
* `S[k,o]`: value o is in memory at slot k.
* `H[k,i]`: the replay state of op i is held at slot k.

Minimise the time of R and X subject to the rows below, each with the reason why every schedule of
Checkmate's class satisfies it when R, X, S and H are read off the schedule (a value is live from the
run that wrote it to its last use; S means "live while op v_k runs at the slot, or between the
neighbouring runs if it does not run there"):

1. `R[k,i] <= R[k,p(j)] + S[k-1,j]` for each value j that i reads, also for ops first computed in
   interval k (left side 1). What runs in the interval finds the copy of j that it reads either in
   memory since the slot before (then that copy was live at the slot) or written in the interval.
2. `S[k,o] <= S[k-1,o] + R[k,p(o)] + [p(o) = v_k] X[k]`. A copy live at slot k was live at slot k-1
   or was written since, at the slot at the latest.
3. `S[k,o] >= X[k]` for each value that v_k reads or writes: both are in memory while it runs. A value
   that nothing can read later is live at its own slot only, so that its S is X.
4. `fixed + sum size_o S[k,o] + workspace(v_k) X[k] + sum state_i H[k,i] <= budget`. If v_k runs, this
   is the memory in use. If not, what is live between two runs is a subset of what was in use while
   the former ran. So no big-M is needed.
5. `S = 1` for lasting values (outputs, and values without bytes) once computed: an output stays,
   and a value without bytes can stay at no cost.
6. `H[k,i] >= R[k+1,i]`, `H[k,i] >= H[k+1,i]`, and `H[k,i] >= X[k]` where v_k = i: the state is held
   from the first run to the last recompute.

Several runs in one interval are paid once, so that the optimum is a lower bound for any choice of
slots. Slots (t, t) and (t, -1) make no assumption on where in a stage an op runs again, nor how often: with these
alone the bound, or an infeasibility, holds for every order of recomputations (scope "order"). Slots
v < t use Checkmate's class (scope "checkmate"). With all slots the program is Checkmate itself.

Left out without loss: what can't matter any more (`Lifetimes`); S at a slot whose stage had a slot
before, where neither a write nor a read of the value can lie between, is that slot's S.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_solver.engines.base import MixedIntegerProgram
from remat_solver.formulation.lifetimes import Lifetimes
from remat_solver.graph import Graph
from remat_solver.plan import ProofScope

Slot = tuple[int, int]
"""(stage, op): the place of the op in the stage; op -1 is the place before the stage."""

ONE = -1
"""Stands for a column that is constant 1; a constant 0 has no entry at all."""

BUDGET_SCALE = 2.0**14
TIME_SCALE = 1e4


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Model units: bytes per memory unit (a power of two, so that division is exact) and ns per time unit."""

    memory_unit: float
    time_unit: float


def scale_for(graph: Graph, budget_bytes: int) -> Scale:
    """Units in which the budget is about `BUDGET_SCALE` and the store-all time `TIME_SCALE`."""
    return Scale(
        memory_unit=2.0 ** math.ceil(math.log2(max(budget_bytes, 1))) / BUDGET_SCALE,
        time_unit=max(graph.total_time_ns, 1) / TIME_SCALE,
    )


@dataclass(kw_only=True)
class CutModel:
    """The program for the chosen slots, and which column is what.

    `kept[k]` maps each value that may be in memory at slot k to its column or `ONE`; `rerun[k]` maps
    each op that may run again in interval k (there are K+1) to its column; `executed[k]` is the
    column of X, `ONE`, or None if nothing runs at the slot. `memory_row[k]` is slot k's row 4.
    `implied` lists the columns that follow from others, each with those of which it is the highest, in an order in
    which they can be found: H, later slots first, and C of `formulation.ranges`.
    `contradiction` is true if some row can't hold whatever the columns are.
    """

    slots: tuple[Slot, ...]
    scale: Scale
    budget_bytes: int
    program: MixedIntegerProgram = field(default_factory=MixedIntegerProgram)
    kept: list[dict[int, int]] = field(default_factory=list)
    rerun: list[dict[int, int]] = field(default_factory=list)
    executed: list[int | None] = field(default_factory=list)
    memory_row: list[int] = field(default_factory=list)
    implied: list[tuple[int, list[int]]] = field(default_factory=list)
    contradiction: bool = False

    @property
    def proof_scope(self) -> ProofScope:
        """The class of schedules for which the model's bound holds."""
        return proof_scope(self.slots)


@dataclass(frozen=True, kw_only=True)
class Cover:
    """Values that, with the op's run if `runs`, do not fit at the slot together: one of them must go.

    Engines meet row 4 within a tolerance only. Where a solution exceeds the budget in exact integers by
    less than that, this row cuts it off; it is implied by row 4.
    """

    slot: Slot
    values: frozenset[int]
    runs: bool


def proof_scope(slots: Sequence[Slot]) -> ProofScope:
    """ "order" if every slot is a first computation's (or before a stage), "checkmate" otherwise."""
    return "order" if all(op in (stage, -1) for stage, op in slots) else "checkmate"


def build_model(
    lifetimes: Lifetimes,
    slots: Sequence[Slot],
    budget_bytes: int,
    *,
    absent: dict[Slot, frozenset[int]] | None = None,
    covers: Sequence[Cover] = (),
) -> CutModel:
    """The relaxation for `slots` (any order, no duplicates), in O(K (ops + edges)).

    `absent`: values that must not be in memory at a slot (pins). Sizes are divided by a power of two,
    which is exact, so that the model neither cuts off a plan nor lets one in.
    """
    chosen = tuple(sorted(slots))
    graph = lifetimes.graph
    scale = scale_for(graph, budget_bytes)
    model = CutModel(slots=chosen, scale=scale, budget_bytes=budget_bytes)
    _Builder(lifetimes, model, absent or {}).build()
    for cover in covers:
        _add_cover(model, cover)
    return model


def _add_cover(model: CutModel, cover: Cover) -> None:
    k = model.slots.index(cover.slot)
    columns = [model.kept[k].get(value) for value in cover.values]
    if cover.runs:
        columns.append(model.executed[k])
    if None in columns:
        return
    free = sorted({column for column in columns if column is not None and column != ONE})
    if free:
        model.program.add_row(free, [1.0] * len(free), lower=-math.inf, upper=len(free) - 1.0)
    else:
        model.contradiction = True


class _Builder:
    def __init__(self, lifetimes: Lifetimes, model: CutModel, absent: dict[Slot, frozenset[int]]) -> None:
        self.lifetimes = lifetimes
        self.graph = lifetimes.graph
        self.model = model
        self.program = model.program
        self.absent = absent
        n = len(self.graph)
        self.starts: list[Slot] = [(0, -1), *model.slots]
        self.ends: list[Slot] = [*model.slots, (n, -1)]
        self.memory_unit = model.scale.memory_unit
        self.lasting_bytes = [0]
        for i in range(n):
            written = sum(self.graph.sizes[v] for v in self.graph.written_by(i) if lifetimes.is_lasting[v])
            self.lasting_bytes.append(self.lasting_bytes[-1] + written)

    def build(self) -> None:
        before: dict[int, int] = {}
        for k in range(len(self.model.slots) + 1):
            rerun = self._add_interval(k, before)
            self.model.rerun.append(rerun)
            if k < len(self.model.slots):
                before = self._add_slot(k, before, rerun)
                self.model.kept.append(before)
        self._add_replay_states()

    def _first_new(self, k: int) -> int:
        """The first op whose first computation lies after slot k-1."""
        stage, op = self.starts[k]
        return stage + 1 if op == stage else stage

    def _add_interval(self, k: int, before: dict[int, int]) -> dict[int, int]:
        """Columns R of interval k and their rows 1, then rows 1 of the first computations in it."""
        first_new = self._first_new(k)
        rerun: dict[int, int] = {}
        for i in self._rerun_candidates(k, first_new):
            sources = self._sources(i, first_new, before, rerun)
            if sources is None:
                continue
            column = self.program.add_column(cost=self.graph.ops[i].time_ns / self.model.scale.time_unit)
            rerun[i] = column
            for terms in sources:
                self.program.add_row([column, *terms], [1.0] + [-1.0] * len(terms), lower=-math.inf, upper=0.0)
        for i in range(first_new, self.ends[k][0]):
            sources = self._sources(i, first_new, before, rerun)
            if sources is None:
                self.model.contradiction = True
                continue
            for terms in sources:
                self.program.add_row(terms, [1.0] * len(terms), lower=1.0, upper=math.inf)
        return rerun

    def _rerun_candidates(self, k: int, first_new: int) -> list[int]:
        """Ops that have a place to run again strictly inside interval k, ascending."""
        (t0, v0), (t1, v1) = self.starts[k], self.ends[k]
        horizon, may_rerun = self.lifetimes.horizon, self.lifetimes.may_rerun
        if t1 == t0:
            places: Sequence[int] = range(v0 + 1, v1)
        elif t1 == t0 + 1:
            in_next_stage = range(max(0, min(v1, first_new)))
            places = [*in_next_stage, *range(max(v0 + 1, len(in_next_stage)), t0)]
        else:
            places = range(first_new)
        return [i for i in places if may_rerun[i] and horizon[i] >= t0]

    def _sources(self, i: int, first_new: int, before: dict[int, int], rerun: dict[int, int]) -> list[list[int]] | None:
        """For each volatile read of i: the columns of which one must be 1; None if a read has no source."""
        found: list[list[int]] = []
        for value in self.lifetimes.reads[i]:
            producer = self.graph.producer[value]
            if producer >= first_new:
                continue
            kept = before.get(value)
            if kept == ONE:
                continue
            again = rerun.get(producer)
            terms = [column for column in (kept, again) if column is not None]
            if not terms:
                return None
            found.append(terms)
        return found

    def _add_slot(self, k: int, before: dict[int, int], rerun: dict[int, int]) -> dict[int, int]:
        """Columns S and X of slot k and rows 2 to 4. Returns the columns S, by value."""
        stage, op = self.model.slots[k]
        executed = self._add_execution(stage, op, before, rerun)
        kept: dict[int, int] = {}
        first_new = self._first_new(k)
        barred = self.absent.get((stage, op), frozenset())
        required = set(self.lifetimes.reads[op]) if op == stage else set()
        for producer in range(stage):
            for value in self.lifetimes.writes[producer]:
                if self.lifetimes.last_use[value] < stage or value in barred:
                    continue
                column = self._kept_column(k, value, producer, first_new, before, rerun, executed, value in required)
                if column is not None:
                    kept[value] = column
        if op == stage:
            kept.update((value, ONE) for value in self.lifetimes.writes[op])
        executed = self._require_reads(op, stage, executed, kept)
        self.model.executed.append(executed)
        self._add_memory_row(stage, op, kept, executed)
        return kept

    def _add_execution(self, stage: int, op: int, before: dict[int, int], rerun: dict[int, int]) -> int | None:
        if op == stage:
            return ONE
        if op < 0 or not self.lifetimes.may_rerun[op]:
            return None
        return self.program.add_column(cost=self.graph.ops[op].time_ns / self.model.scale.time_unit)

    def _kept_column(
        self,
        k: int,
        value: int,
        producer: int,
        first_new: int,
        before: dict[int, int],
        rerun: dict[int, int],
        executed: int | None,
        is_required: bool,
    ) -> int | None:
        """S[k, value] with its row 2: a new column, an aliased one, `ONE`, or None for a constant 0."""
        stage, op = self.model.slots[k]
        is_new = producer >= first_new
        if k and self.model.slots[k - 1][0] == stage and not is_required and not self._is_touched(k, value, producer):
            return before.get(value)
        sources = [
            c for c in (before.get(value), rerun.get(producer), executed if producer == op else None) if c is not None
        ]
        has_constant_source = is_new or ONE in sources
        if is_required:
            if not has_constant_source:
                self._require_any(sources)
            return ONE
        if not has_constant_source and not sources:
            return None
        column = self.program.add_column()
        if not has_constant_source:
            self.program.add_row([column, *sources], [1.0] + [-1.0] * len(sources), lower=-math.inf, upper=0.0)
        return column

    def _is_touched(self, k: int, value: int, producer: int) -> bool:
        """Whether an op that writes or reads the value has its place between slots k-1 and k, ends included."""
        low, high = self.model.slots[k - 1][1], self.model.slots[k][1]
        return low <= producer <= high or any(low <= reader <= high for reader in self.graph.readers[value])

    def _require_any(self, columns: list[int]) -> None:
        if columns:
            self.program.add_row(columns, [1.0] * len(columns), lower=1.0, upper=math.inf)
        else:
            self.model.contradiction = True

    def _require_reads(self, op: int, stage: int, executed: int | None, kept: dict[int, int]) -> int | None:
        """Rows 3. X is fixed to 0 (and None returned) if a read can't be in memory."""
        if executed is None or executed == ONE:
            return executed
        for value in (*self.lifetimes.reads[op], *self.lifetimes.writes[op]):
            column = kept.get(value)
            if column is None:
                if self.graph.producer[value] == op:
                    continue  # dead after its slot: the memory row counts it with X
                self.program.upper[executed] = 0.0
                return None
            if column != ONE:
                self.program.add_row([column, executed], [1.0, -1.0], lower=0.0, upper=math.inf)
        return executed

    def _add_memory_row(self, stage: int, op: int, kept: dict[int, int], executed: int | None) -> None:
        room = self.model.budget_bytes - self.graph.fixed_bytes
        room -= self.lasting_bytes[stage + 1 if op == stage else stage]
        load: dict[int, int] = {}
        for value, column in kept.items():
            size = self.graph.sizes[value]
            if column == ONE:
                room -= size
            else:
                load[column] = load.get(column, 0) + size
        if executed is not None:
            running = self.graph.ops[op].workspace_bytes
            running += sum(self.graph.sizes[v] for v in self.lifetimes.writes[op] if v not in kept)
            if executed == ONE:
                room -= running
            elif running:
                load[executed] = load.get(executed, 0) + running
        if room < 0:
            self.model.contradiction = True
        unit = self.memory_unit
        self.model.memory_row.append(
            self.program.add_row(
                list(load), [size / unit for size in load.values()], lower=-math.inf, upper=room / unit
            )
        )

    def _add_replay_states(self) -> None:
        """Columns H and rows 6, from the last slot backwards."""
        for i, op in enumerate(self.graph.ops):
            if op.recompute_state_bytes and self.lifetimes.may_rerun[i]:
                self._add_replay_state(i, op.recompute_state_bytes / self.memory_unit)

    def _add_replay_state(self, i: int, state: float) -> None:
        later: int | None = None
        for k in range(len(self.model.slots) - 1, -1, -1):
            if self.model.slots[k] < (i, i):
                break
            executed = self.model.executed[k] if self.model.slots[k][1] == i else None
            causes = [c for c in (later, self.model.rerun[k + 1].get(i), executed) if c is not None and c != ONE]
            if not causes:
                continue
            later = self.program.add_column(integer=False)
            self.model.implied.append((later, causes))
            for cause in causes:
                self.program.add_row([later, cause], [1.0, -1.0], lower=0.0, upper=math.inf)
            row = self.model.memory_row[k]
            self.program.row_columns[row].append(later)
            self.program.row_coefficients[row].append(state)
