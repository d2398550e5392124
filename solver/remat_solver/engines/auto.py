"""The engine "auto": HiGHS where its package is installed, else CBC; with two threads or more, both at once.

HiGHS is the quicker of the two on most training graphs, CBC on dense random ones. Run together, the
first to finish stops the other, and the answer joins the better incumbent with the better bound: both
are proven for the same program. Which of several equally good schedules comes out then depends on timing.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from remat_solver.engines.base import Engine, Limits, MixedIntegerProgram, Outcome, StopRequest
from remat_solver.engines.cbc import Cbc
from remat_solver.engines.highs import Highs
from remat_solver.errors import EngineError

_POLL_S = 0.02


class Auto:
    """The engine: see `Engine`."""

    def __init__(self) -> None:
        self._first: Engine = Highs() if importlib.util.find_spec("highspy") else Cbc()
        self._second: Engine | None = Cbc() if self._first.name == "highs" else None

    @property
    def name(self) -> str:
        """The engine's name."""
        return "auto"

    def version(self) -> str:
        """Names and versions of the engines behind it."""
        versions = [f"{self._first.name} {self._first.version()}"]
        if self._second is not None:
            versions.append(f"{self._second.name} {self._second.version()}")
        return ", ".join(versions)

    def solve(
        self,
        program: MixedIntegerProgram,
        limits: Limits,
        *,
        warm_start: Sequence[float] | None = None,
        should_stop: StopRequest | None = None,
        on_incumbent: Callable[[float, float], None] | None = None,
    ) -> Outcome:
        """Minimises `program`: see `Engine.solve`. Fails only if every engine that it asked does."""
        if limits.threads < 2 or self._second is None:
            return self._first.solve(
                program, limits, warm_start=warm_start, should_stop=should_stop, on_incumbent=on_incumbent
            )
        return _Race(program, limits, warm_start, should_stop, on_incumbent).run(self._first, self._second)


@dataclass
class _Race:
    """Two engines on one program, each in a thread of its own."""

    program: MixedIntegerProgram
    limits: Limits
    warm_start: Sequence[float] | None
    should_stop: StopRequest | None
    on_incumbent: Callable[[float, float], None] | None
    outcomes: list[Outcome] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    best: tuple[float, float] = (float("inf"), float("-inf"))
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, first: Engine, second: Engine) -> Outcome:
        start = time.monotonic()
        threads = [
            threading.Thread(target=self._enter, args=(first, 1)),
            threading.Thread(target=self._enter, args=(second, self.limits.threads - 1)),
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                if self.should_stop is not None and self.should_stop():
                    self.over.set()
                threads[0].join(_POLL_S)
                threads[1].join(_POLL_S)
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        return self._join(time.monotonic() - start)

    def _enter(self, engine: Engine, threads: int) -> None:
        limits = replace(self.limits, threads=threads)
        try:
            outcome = engine.solve(
                self.program,
                limits,
                warm_start=self.warm_start,
                should_stop=self.over.is_set,
                on_incumbent=self._tell if self.on_incumbent is not None else None,
            )
        except BaseException as failure:  # raised by `_join`, in the caller's thread
            self.failures.append(failure)
            if not isinstance(failure, EngineError):
                self.over.set()
            return
        self.outcomes.append(outcome)
        if outcome.termination in ("optimal", "infeasible", "cutoff"):
            self.over.set()

    def _tell(self, objective: float, bound: float) -> None:
        """Passes on what improves on both engines' best."""
        assert self.on_incumbent is not None
        with self.lock:
            better = min(self.best[0], objective), max(self.best[1], bound)
            if better != self.best:
                self.best = better
                self.on_incumbent(*better)

    def _join(self, wall_s: float) -> Outcome:
        for failure in self.failures:
            if not isinstance(failure, EngineError) or not self.outcomes:
                raise failure
        for outcome in self.outcomes:
            if outcome.termination in ("infeasible", "cutoff"):
                return outcome
        bound = max(outcome.bound for outcome in self.outcomes)
        found = [(o.objective, o.x) for o in self.outcomes if o.objective is not None and o.x is not None]
        if not found:
            return Outcome(termination="no_solution", bound=bound, wall_s=wall_s)
        objective, x = min(found)
        proven = any(outcome.termination == "optimal" for outcome in self.outcomes)
        return Outcome(
            termination="optimal" if proven else "feasible",
            bound=min(bound, objective),
            objective=objective,
            x=x,
            wall_s=wall_s,
            row_duals=next((outcome.row_duals for outcome in self.outcomes if outcome.row_duals), ()),
        )
