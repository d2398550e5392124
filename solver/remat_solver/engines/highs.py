"""HiGHS, called inside this process through highspy's arrays. An optional package (`remat[highs]`).

HiGHS searches with one thread whatever `Limits.threads` says: its own parallelism hardly helps a MIP, and its
scheduler can't be resized once a process has used it.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from remat_solver.engines.base import Limits, MixedIntegerProgram, Outcome, StopRequest, Termination
from remat_solver.engines.incumbent import accept_incumbent
from remat_solver.errors import EngineFailed, EngineMissing

_ENUMERATION_RULE = 1 << 16
"""A presolve rule that came with HiGHS 1.16 and in 1.16.0 calls feasible programs infeasible (dense Checkmate on
5 ops; CBC, brute force and HiGHS without the rule agree that it is feasible)."""
_TOLERANCE = 1e-6
"""HiGHS's own: bounds are believed up to this much (absolute, and per unit of objective)."""


class Highs:
    """The engine: see `Engine`."""

    @property
    def name(self) -> str:
        """The engine's name."""
        return "highs"

    def version(self) -> str:
        """HiGHS's version; raises `EngineMissing`."""
        module = _highspy()
        return f"{module.HIGHS_VERSION_MAJOR}.{module.HIGHS_VERSION_MINOR}.{module.HIGHS_VERSION_PATCH}"

    def solve(
        self,
        program: MixedIntegerProgram,
        limits: Limits,
        *,
        warm_start: Sequence[float] | None = None,
        should_stop: StopRequest | None = None,
        on_incumbent: Callable[[float, float], None] | None = None,
    ) -> Outcome:
        """Minimises `program`: see `Engine.solve`.

        HiGHS 1.16.0 has answered a warm start with an objective that was not that of its columns. Where
        they differ, or its columns break the model, it solves once more without.
        """
        start = time.monotonic()
        run = _Run(program, should_stop, on_incumbent)
        outcome = run.solve(limits, warm_start)
        if outcome is None:
            rest = replace(limits, time_limit_s=limits.time_limit_s - (time.monotonic() - start))
            outcome = _Run(program, should_stop, on_incumbent).solve(rest, None)
        assert outcome is not None
        return outcome


class _Run:
    """One call of HiGHS, and what its callbacks have seen."""

    def __init__(
        self,
        program: MixedIntegerProgram,
        should_stop: StopRequest | None,
        on_incumbent: Callable[[float, float], None] | None,
    ) -> None:
        self._highspy = _highspy()
        self._program = program
        self._should_stop = should_stop
        self._on_incumbent = on_incumbent
        self._cutoff = math.inf
        self._seen = (math.inf, -math.inf)
        self._failure: BaseException | None = None

    def solve(self, limits: Limits, warm_start: Sequence[float] | None) -> Outcome | None:
        """The outcome, or None if a warm start led HiGHS to nonsense."""
        start = time.monotonic()
        if limits.time_limit_s <= 0:
            return Outcome(termination="no_solution", bound=-math.inf)
        self._cutoff = limits.cutoff
        highs = self._prepare(limits)
        if warm_start is not None:
            solution = self._highspy.HighsSolution()
            solution.col_value = list(warm_start)
            highs.setSolution(solution)
        highs.run()
        if self._failure is not None:
            raise self._failure
        return self._read(highs, is_warm=warm_start is not None, wall_s=time.monotonic() - start)

    def _prepare(self, limits: Limits) -> Any:
        highs = _silent_class(self._highspy)()
        options = {
            "time_limit": limits.time_limit_s,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": max(limits.absolute_gap, _TOLERANCE),
            "threads": 1,
            "parallel": "off",
        }
        if limits.cutoff < math.inf:
            options["objective_bound"] = limits.cutoff - self._program.constant
        if (self._highspy.HIGHS_VERSION_MAJOR, self._highspy.HIGHS_VERSION_MINOR) >= (1, 16):
            options["presolve_rule_off"] = _ENUMERATION_RULE
        for option, value in options.items():
            highs.setOptionValue(option, value)
        if self._should_stop is not None:
            for callback in (highs.cbSimplexInterrupt, highs.cbIpmInterrupt):
                callback.subscribe(self._interrupt_if_asked)
        highs.cbMipInterrupt.subscribe(self._look)
        if highs.passModel(_lp(self._highspy, self._program)) == self._highspy.HighsStatus.kError:
            raise EngineFailed("HiGHS refused the model.", hint="Try engine='cbc'.", engine="highs")
        return highs

    def _look(self, event: Any) -> None:
        """Called often while branching. Nothing may be raised through C++: it is kept, and raised afterwards."""
        try:
            constant = self._program.constant
            incumbent = min(self._seen[0], event.data_out.mip_primal_bound + constant)
            bound = max(self._seen[1], min(event.data_out.mip_dual_bound + constant, self._cutoff) - _TOLERANCE)
            if self._on_incumbent is not None and (incumbent, bound) != self._seen:
                self._seen = incumbent, bound
                self._on_incumbent(incumbent, bound)
        except BaseException as failure:  # kept, and raised by `solve`
            self._failure = failure
            event.interrupt()
        else:
            self._interrupt_if_asked(event)

    def _interrupt_if_asked(self, event: Any) -> None:
        try:
            if self._should_stop is not None and self._should_stop():
                event.interrupt()
        except BaseException as failure:  # kept, and raised by `solve`
            self._failure = failure
            event.interrupt()

    def _read(self, highs: Any, *, is_warm: bool, wall_s: float) -> Outcome | None:
        statuses = self._highspy.HighsModelStatus
        status = highs.getModelStatus()
        info = highs.getInfo()
        is_infeasible = status == statuses.kUnboundedOrInfeasible and self._is_bounded()
        if status in (statuses.kInfeasible, statuses.kObjectiveBound) or is_infeasible:
            ending: Termination = "infeasible" if self._cutoff == math.inf else "cutoff"
            return Outcome(termination=ending, bound=_lowered(self._cutoff), wall_s=wall_s)
        if status not in (statuses.kOptimal, statuses.kTimeLimit, statuses.kInterrupt, statuses.kHighsInterrupt):
            raise EngineFailed(f"HiGHS ended as {highs.modelStatusToString(status)!r}.", engine="highs")
        constant = self._program.constant
        bound = constant + self._dual_bound(info, is_optimal=status == statuses.kOptimal)
        bound = _lowered(min(bound, self._cutoff))
        if info.primal_solution_status != self._highspy.SolutionStatus.kSolutionStatusFeasible:
            return Outcome(termination="no_solution", bound=bound, wall_s=wall_s)
        try:
            x, objective = accept_incumbent(self._program, highs.getSolution().col_value, engine="highs")
            self._check_price(objective, info.objective_function_value + constant)
        except EngineFailed:
            if is_warm:
                return None
            raise
        is_optimal = status == statuses.kOptimal
        return Outcome(
            termination=self._termination(objective, is_optimal=is_optimal),
            bound=min(bound, objective),
            objective=objective,
            x=x,
            wall_s=wall_s,
            row_duals=() if any(self._program.integer) or not is_optimal else tuple(highs.getSolution().row_dual),
        )

    def _termination(self, objective: float, *, is_optimal: bool) -> Termination:
        """HiGHS may keep an incumbent that is no better than the cutoff, and call it optimal."""
        if not is_optimal:
            return "feasible"
        return "optimal" if objective < self._cutoff else "cutoff"

    def _dual_bound(self, info: Any, *, is_optimal: bool) -> float:
        if any(self._program.integer):
            return float(info.mip_dual_bound)
        return float(info.objective_function_value) if is_optimal else -math.inf

    def _is_bounded(self) -> bool:
        """Whether no column can lower the objective for ever."""
        program = self._program
        columns = zip(program.cost, program.lower, program.upper, strict=True)
        return all(math.isfinite(low if cost > 0 else high) for cost, low, high in columns if cost)

    def _check_price(self, priced: float, reported: float) -> None:
        scale = max(1.0, sum(map(abs, self._program.cost)))
        if abs(priced - reported) > 1e-5 * scale:
            raise EngineFailed(
                f"HiGHS reports an objective of {reported}, but its columns cost {priced}.",
                hint="Try engine='cbc'.",
                engine="highs",
            )


def _lowered(bound: float) -> float:
    """The bound less the engine's tolerance."""
    return bound - _TOLERANCE * max(1.0, abs(bound)) if math.isfinite(bound) else bound


@lru_cache(maxsize=1)
def _silent_class(highspy: Any) -> Any:
    """HiGHS prints a banner as soon as its callbacks are enabled, which its constructor does: silence it before."""

    class Silent(highspy.Highs):  # type: ignore[misc]  # highspy is imported late, so this base is of type Any
        def enableCallbacks(self) -> None:  # noqa: N802 (highspy's name)
            self.silent()
            super().enableCallbacks()

    return Silent


def _lp(highspy: Any, program: MixedIntegerProgram) -> Any:
    """The program as HiGHS's row-wise arrays."""
    lp = highspy.HighsLp()
    lp.num_col_ = program.column_count
    lp.num_row_ = program.row_count
    lp.col_cost_ = program.cost
    lp.col_lower_ = program.lower
    lp.col_upper_ = program.upper
    lp.row_lower_ = program.row_lower
    lp.row_upper_ = program.row_upper
    lp.integrality_ = [
        highspy.HighsVarType.kInteger if integer else highspy.HighsVarType.kContinuous for integer in program.integer
    ]
    starts = [0]
    for columns in program.row_columns:
        starts.append(starts[-1] + len(columns))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = starts
    lp.a_matrix_.index_ = [column for columns in program.row_columns for column in columns]
    lp.a_matrix_.value_ = [value for values in program.row_coefficients for value in values]
    return lp


def _highspy() -> Any:
    try:
        return importlib.import_module("highspy")
    except ImportError as error:
        raise EngineMissing(
            f"HiGHS's package can't be imported: {error}.",
            hint="Install it (pip install 'remat[highs]'), or choose engine='cbc'.",
            engine="highs",
        ) from None
