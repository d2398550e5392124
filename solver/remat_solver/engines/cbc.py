"""CBC, run as a program of its own under supervision."""

from __future__ import annotations

import math
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from remat_solver.engines import pulp_model
from remat_solver.engines.base import Limits, MixedIntegerProgram, Outcome, StopRequest
from remat_solver.engines.cbc_binary import cbc_version, find_cbc
from remat_solver.engines.cbc_log import CbcLog
from remat_solver.engines.incumbent import accept_incumbent, is_feasible
from remat_solver.engines.mps import MpsModel
from remat_solver.engines.pulp_model import PulpModel
from remat_solver.engines.supervised import Ended, NotStarted, Supervision, run_supervised
from remat_solver.errors import EngineFailed

_CUTOFF_INCREMENT = 1e-5
"""CBC's own: it does not look for solutions that are better by less (where costs are no multiples of more)."""


@dataclass(frozen=True, kw_only=True)
class Cbc:
    """The engine. `memory_bytes` limits CBC's address space. CBC looks at its clock only between linear programs:
    `overrun` is the share of its limit (at least 1 s, at most 5) that it may take beyond, before SIGINT; `grace_s`
    is the time from there to SIGKILL, which costs the incumbent. `program` overrides where CBC is looked for. `options`
    are further arguments. The feasibility pump gets 5 passes instead of 30: on 16 models of memory cuts that
    made CBC 1.8 times as fast (CPU seconds; 0.9 to 4.7), and the answers were as good.
    """

    memory_bytes: int | None = None
    overrun: float = 0.1
    grace_s: float = 2.0
    program: Path | None = None
    options: tuple[str, ...] = ("-passFeasibilityPump", "5")

    @property
    def name(self) -> str:
        """The engine's name."""
        return "cbc"

    def version(self) -> str:
        """CBC's version; raises `EngineMissing` or `EngineFailed`."""
        return cbc_version(self.program or find_cbc())

    def solve(
        self,
        program: MixedIntegerProgram,
        limits: Limits,
        *,
        warm_start: Sequence[float] | None = None,
        should_stop: StopRequest | None = None,
        on_incumbent: Callable[[float, float], None] | None = None,
    ) -> Outcome:
        """Minimises `program`: see `Engine.solve`. One temporary folder, one CBC process.

        With several threads CBC's search depends on timing; with one it is the same in every run.
        """
        outcome = self._solve_once(program, limits, warm_start, should_stop, on_incumbent)
        if outcome.termination == "infeasible" and warm_start is not None and is_feasible(program, warm_start):
            rest = replace(limits, time_limit_s=limits.time_limit_s - outcome.wall_s)
            return self._solve_once(program, rest, None, should_stop, on_incumbent)
        return outcome

    def _solve_once(
        self,
        program: MixedIntegerProgram,
        limits: Limits,
        warm_start: Sequence[float] | None,
        should_stop: StopRequest | None,
        on_incumbent: Callable[[float, float], None] | None,
    ) -> Outcome:
        start = time.monotonic()
        cbc = self.program or find_cbc()
        if limits.time_limit_s <= 0:
            return Outcome(termination="no_solution", bound=-math.inf)
        log = CbcLog()

        def read_line(line: str) -> None:
            if log.read(line) and on_incumbent is not None:
                on_incumbent(log.incumbent + program.constant, log.bound + program.constant)

        with tempfile.TemporaryDirectory(prefix="remat-cbc-") as name:
            folder = Path(name)
            path = folder / "solution.txt"
            model = _write_model(program, folder)
            command = [str(cbc), str(model.model_path), *_start_arguments(model, folder, warm_start)]
            left_s = max(limits.time_limit_s - (time.monotonic() - start), 0.01)
            command += [*self._arguments(limits, left_s, program.constant), "-printingOptions", "rows"]
            ended = _run(
                [*command, "-solve", "-solution", str(path)], self._supervision(left_s), read_line, should_stop
            )
            x = _read_solution(model, path, ended, log)
            row_duals = model.read_row_duals(path) if isinstance(model, MpsModel) and x is not None else ()
        in_time = ended.wall_s < left_s and not ended.stopped_by
        outcome = _outcome(program, limits, log, x, in_time=in_time, wall_s=time.monotonic() - start)
        is_linear = outcome.termination == "optimal" and not any(program.integer)
        return replace(outcome, row_duals=row_duals) if is_linear else outcome

    def _supervision(self, left_s: float) -> Supervision:
        overrun_s = min(max(1.0, self.overrun * left_s), 5.0)
        return Supervision(wall_limit_s=left_s + overrun_s, grace_s=self.grace_s, memory_bytes=self.memory_bytes)

    def _arguments(self, limits: Limits, left_s: float, constant: float) -> list[str]:
        arguments = ["-timeMode", "elapsed", "-sec", f"{left_s:.3f}"]
        if limits.cutoff < math.inf:
            arguments += ["-cutoff", repr(limits.cutoff - constant)]
        if limits.absolute_gap > 0:
            arguments += ["-allow", repr(limits.absolute_gap)]
        if limits.threads > 1:
            arguments += ["-threads", str(limits.threads)]
        return [*arguments, *self.options]


def _write_model(program: MixedIntegerProgram, folder: Path) -> PulpModel | MpsModel:
    """Only `MpsModel` reads the duals of linear programs."""
    if any(program.integer) and program.column_count <= pulp_model.MAX_COLUMNS:
        return PulpModel(program, folder)
    return MpsModel(program, folder)


def _start_arguments(model: PulpModel | MpsModel, folder: Path, warm_start: Sequence[float] | None) -> list[str]:
    if warm_start is None:
        return []
    model.write_start(folder / "start.txt", tuple(warm_start))
    return ["-mips", str(folder / "start.txt")]


def _run(
    command: Sequence[str],
    supervision: Supervision,
    on_line: Callable[[str], None],
    should_stop: StopRequest | None,
) -> Ended:
    try:
        return run_supervised(command, supervision, on_line=on_line, should_stop=should_stop)
    except NotStarted as error:
        raise EngineFailed(f"CBC ({command[0]}) can't be started: {error}.", engine="cbc") from error


def _read_solution(model: PulpModel | MpsModel, path: Path, ended: Ended, log: CbcLog) -> tuple[float, ...] | None:
    """The incumbent's columns, None if there is none; raises `EngineFailed` if CBC died by itself."""
    if ended.stopped_by and (ended.killed or ended.exit_code == -signal.SIGINT):
        return None  # by us: it had not installed its handler yet, or did not come back in time
    if ended.exit_code != 0 or not path.exists():
        how = f"by signal {-ended.exit_code}" if ended.exit_code < 0 else f"with exit code {ended.exit_code}"
        last_words = log.tail[-1] if log.tail else "nothing"
        raise EngineFailed(
            f"CBC ended {how} and without an answer; the last it printed was: {last_words!r}.",
            hint="If it ran out of memory, allow it more or choose a larger gap; otherwise try engine='highs'.",
            engine="cbc",
        )
    try:
        return model.read_solution(path)
    except (ValueError, IndexError) as error:
        raise EngineFailed(f"CBC's solution file can't be read: {error}.", engine="cbc") from error


def _outcome(
    program: MixedIntegerProgram,
    limits: Limits,
    log: CbcLog,
    x: tuple[float, ...] | None,
    *,
    in_time: bool,
    wall_s: float,
) -> Outcome:
    """`in_time`: CBC can't have met its time limit. Near it CBC 2.10.3 has called feasible models infeasible."""
    worst = limits.cutoff - _CUTOFF_INCREMENT
    bound = min(log.bound + program.constant, worst)
    if x is None:
        if log.proved_infeasible and in_time:
            return Outcome(termination="infeasible" if worst == math.inf else "cutoff", bound=worst, wall_s=wall_s)
        return Outcome(termination="no_solution", bound=bound, wall_s=wall_s)
    x, objective = accept_incumbent(program, x, engine="cbc")
    if log.proved_optimal and in_time:
        by_gap = objective - max(limits.absolute_gap, _CUTOFF_INCREMENT)
        bound = max(bound, by_gap, min(log.completed_bound + program.constant, worst))
    proven = log.proved_optimal and in_time
    return Outcome(
        termination="optimal" if proven else "feasible",
        bound=min(bound, objective),
        objective=objective,
        x=x,
        wall_s=wall_s,
    )
