"""What every engine must do, whichever it is."""

from __future__ import annotations

import math
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from remat_solver.engines import engine_named
from remat_solver.engines.base import Engine, Limits, MixedIntegerProgram
from remat_solver.engines.incumbent import is_feasible
from remat_solver.errors import EngineMissing, InvalidRequest
from tests.solver.mip_programs import (
    enumerate_optimum,
    hard_cover,
    infeasible,
    knapsack_cover,
    market_split,
    random_program,
)

ENOUGH = Limits(time_limit_s=60)


@pytest.fixture(params=["cbc", "highs", "auto"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return engine_named(request.param)


def test_optimal(engine: Engine) -> None:
    program, optimum = knapsack_cover()
    outcome = engine.solve(program, ENOUGH)
    assert outcome.termination == "optimal"
    assert outcome.x is not None
    assert outcome.objective == pytest.approx(optimum)
    assert program.price(outcome.x) == outcome.objective
    assert optimum - 1e-4 <= outcome.bound <= optimum


def test_infeasible_is_proven(engine: Engine) -> None:
    outcome = engine.solve(infeasible(), ENOUGH)
    assert outcome.termination == "infeasible"
    assert outcome.x is None
    assert outcome.objective is None


@pytest.mark.parametrize("above", [0.5, 3.0])
def test_a_cutoff_above_the_optimum_changes_nothing(engine: Engine, above: float) -> None:
    program, optimum = knapsack_cover()
    outcome = engine.solve(program, replace(ENOUGH, cutoff=optimum + above))
    assert outcome.termination == "optimal"
    assert outcome.objective == pytest.approx(optimum)


@pytest.mark.parametrize("below", [0.01, 2.0])
def test_a_cutoff_below_the_optimum_is_the_bound(engine: Engine, below: float) -> None:
    program, optimum = knapsack_cover()
    outcome = engine.solve(program, replace(ENOUGH, cutoff=optimum - below))
    assert outcome.termination == "cutoff"
    assert optimum - below - 1e-3 <= outcome.bound <= optimum - below


def test_with_a_cutoff_no_proof_says_infeasible(engine: Engine) -> None:
    outcome = engine.solve(infeasible(), replace(ENOUGH, cutoff=100.0))
    assert outcome.termination == "cutoff"
    assert outcome.bound <= 100.0


@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_cutoffs_against_enumeration(engine: Engine, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        program = random_program(seed)
        optimum = enumerate_optimum(program)
        if optimum is None:
            continue
        cutoff = optimum + random.Random(seed).choice([-1.0, -0.1, 0.1, 1.0])
        outcome = engine.solve(program, replace(ENOUGH, cutoff=cutoff))
        assert outcome.termination == ("optimal" if cutoff > optimum else "cutoff"), seed
        assert outcome.bound <= min(optimum, cutoff) + 1e-6
        if cutoff > optimum:
            assert outcome.objective == pytest.approx(optimum, abs=1e-6)


def test_a_time_out_keeps_the_incumbent_and_the_bound(engine: Engine) -> None:
    program = hard_cover()
    outcome = engine.solve(program, Limits(time_limit_s=1.5))
    assert outcome.termination == "feasible"
    assert outcome.x is not None
    assert is_feasible(program, outcome.x)
    assert outcome.objective == program.price(outcome.x)
    assert 1205 < outcome.bound < outcome.objective


def test_a_time_out_without_incumbent_is_no_verdict(engine: Engine) -> None:
    outcome = engine.solve(market_split(), Limits(time_limit_s=1.0))
    assert outcome.termination == "no_solution"
    assert outcome.x is None
    assert outcome.bound < math.inf


@pytest.mark.parametrize("time_limit_s", [0.0, 0.001])
def test_a_tiny_limit_never_reads_as_infeasible(engine: Engine, time_limit_s: float) -> None:
    program, _ = knapsack_cover()
    assert engine.solve(program, Limits(time_limit_s=time_limit_s)).termination != "infeasible"


def test_a_stop_request_keeps_the_incumbent(engine: Engine) -> None:
    seen: list[float] = []
    start = time.monotonic()
    program = hard_cover()
    outcome = engine.solve(
        program,
        Limits(time_limit_s=300),
        should_stop=lambda: bool(seen) or time.monotonic() - start > 20,
        on_incumbent=lambda objective, _: seen.append(objective) if objective < math.inf else None,
    )
    assert outcome.termination == "feasible"
    assert outcome.x is not None
    assert outcome.wall_s < 200


def test_a_stop_request_at_once_is_no_verdict(engine: Engine) -> None:
    outcome = engine.solve(market_split(), Limits(time_limit_s=300), should_stop=lambda: True)
    assert outcome.termination == "no_solution"
    assert outcome.wall_s < 200


def test_progress_brackets_the_answer(engine: Engine) -> None:
    seen: list[tuple[float, float]] = []
    outcome = engine.solve(
        hard_cover(), Limits(time_limit_s=1.5), on_incumbent=lambda objective, bound: seen.append((objective, bound))
    )
    assert outcome.objective is not None
    incumbents, bounds = zip(*seen, strict=True)
    assert list(incumbents) == sorted(incumbents, reverse=True)
    assert list(bounds) == sorted(bounds)
    assert incumbents[-1] >= outcome.objective
    assert max(bounds) <= outcome.objective


def test_the_gap_is_kept_and_the_bound_stays_honest(engine: Engine) -> None:
    """The optimum is 67; with a gap of 20 both engines are content with 68, which proves nothing above 48."""
    program = hard_cover(columns=60, rows=60, seed=5)
    loose = engine.solve(program, Limits(time_limit_s=60, absolute_gap=20.0))
    assert loose.termination == "optimal"
    assert loose.objective is not None
    assert 1067.0 < loose.objective <= 1087.0
    assert loose.objective - 20.0 - 1e-4 <= loose.bound <= 1067.0


def test_a_warm_start_is_never_lost(engine: Engine) -> None:
    program = hard_cover()
    start = engine.solve(program, Limits(time_limit_s=1.5))
    assert start.x is not None
    assert start.objective is not None
    again = engine.solve(program, Limits(time_limit_s=1.0), warm_start=start.x)
    assert again.objective is not None
    assert again.objective <= start.objective


def test_a_broken_warm_start_is_harmless(engine: Engine) -> None:
    program, optimum = knapsack_cover()
    outcome = engine.solve(program, ENOUGH, warm_start=[0.0] * program.column_count)
    assert outcome.objective == pytest.approx(optimum)


@pytest.mark.parametrize("first_seed", range(0, 120, 20))
def test_random_programs_against_enumeration(engine: Engine, first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        program = random_program(seed)
        optimum = enumerate_optimum(program)
        outcome = engine.solve(program, ENOUGH)
        if optimum is None:
            assert outcome.termination == "infeasible", seed
            continue
        assert outcome.termination == "optimal", seed
        assert outcome.objective == pytest.approx(optimum, abs=1e-5), seed
        assert outcome.bound <= optimum + 1e-7, seed
        warm = engine.solve(program, ENOUGH, warm_start=outcome.x)
        assert warm.objective == pytest.approx(optimum, abs=1e-5), seed


def test_linear_programs_too(engine: Engine) -> None:
    program = MixedIntegerProgram(constant=3.0)
    columns = [program.add_column(cost=cost, integer=False) for cost in (1.0, 2.0, 4.0)]
    program.add_row(columns, [1.0, 1.0, 1.0], lower=1.5, upper=math.inf)
    outcome = engine.solve(program, ENOUGH)
    assert outcome.termination == "optimal"
    assert outcome.x == pytest.approx((1.0, 0.5, 0.0))
    assert outcome.objective == pytest.approx(5.0)
    assert 5.0 - 1e-4 <= outcome.bound <= outcome.objective
    program.add_row(columns, [1.0, 1.0, 1.0], lower=-math.inf, upper=1.0)
    assert engine.solve(program, ENOUGH).termination == "infeasible"


def test_it_is_deterministic(engine: Engine) -> None:
    program = hard_cover(columns=60, rows=60, seed=5)
    first, second = (engine.solve(program, ENOUGH) for _ in range(2))
    assert first.x == second.x


def test_several_threads(engine: Engine) -> None:
    program = hard_cover(columns=60, rows=60, seed=5)
    one = engine.solve(program, ENOUGH)
    two = engine.solve(program, Limits(time_limit_s=60, threads=2))
    assert two.termination == "optimal"
    assert two.objective == one.objective


def test_the_version_is_known(engine: Engine) -> None:
    assert re.search(r"\d+\.\d+\.\d+", engine.version())


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="gurobi"):
        engine_named("gurobi")


@pytest.mark.parametrize("name", ["highs", "auto"])
def test_without_its_package_highs_is_missing_and_auto_is_cbc(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    program, optimum = knapsack_cover()
    if name == "highs":
        with pytest.raises(EngineMissing, match=r"remat\[highs\]"):
            engine_named(name).solve(program, ENOUGH)
    else:
        assert engine_named(name).solve(program, ENOUGH).objective == pytest.approx(optimum)


def test_a_race_survives_the_loss_of_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CBC", "/nowhere/cbc")
    program, optimum = knapsack_cover()
    outcome = engine_named("auto").solve(program, Limits(time_limit_s=60, threads=2))
    assert outcome.objective == pytest.approx(optimum)


def test_what_a_callback_raises_comes_back(engine: Engine) -> None:
    class OwnError(Exception):
        pass

    def fail(objective: float, bound: float) -> None:
        raise OwnError

    with pytest.raises(OwnError):
        engine.solve(hard_cover(), Limits(time_limit_s=60), on_incumbent=fail)
    with pytest.raises(OwnError):
        engine.solve(hard_cover(), Limits(time_limit_s=60, threads=2), on_incumbent=fail)


@pytest.mark.parametrize("name", ["cbc", "highs", "auto"])
def test_row_duals_say_what_a_limit_costs(name: str) -> None:
    program = MixedIntegerProgram()
    columns = [program.add_column(cost=cost, integer=False) for cost in (2.0, 3.0, 1.0)]
    program.add_row(columns[:2], [1.0, 1.0], lower=0.5, upper=math.inf)
    program.add_row([columns[0], columns[2]], [1.0, -1.0], lower=-math.inf, upper=0.2)
    program.add_row(columns[1:], [1.0, 1.0], lower=0.0, upper=0.9)
    for threads in (1, 2):
        outcome = engine_named(name).solve(program, replace(ENOUGH, threads=threads))
        assert outcome.row_duals == pytest.approx((3.0, -1.0, 0.0))


def test_programs_in_integers_have_no_row_duals(engine: Engine) -> None:
    program, _ = knapsack_cover()
    assert engine.solve(program, ENOUGH).row_duals == ()


def test_row_duals_of_random_linear_programs_prove_their_optimum() -> None:
    """Strong duality: limits times duals, and columns' bounds times what is left of their costs, add up to it."""
    proven = 0
    for seed in range(40):
        program = random_program(seed)
        program.integer = [False] * program.column_count
        for name in ("cbc", "highs"):
            outcome = engine_named(name).solve(program, ENOUGH)
            if outcome.termination != "optimal":
                continue
            assert outcome.objective == pytest.approx(dual_objective(program, outcome.row_duals), abs=1e-5)
            proven += 1
    assert proven > 40


def dual_objective(program: MixedIntegerProgram, row_duals: Sequence[float]) -> float:
    """The Lagrangian bound of these duals: where a limit is infinite its dual must be zero."""
    reduced = list(program.cost)
    total = program.constant
    for row, dual in enumerate(row_duals):
        if abs(dual) < 1e-9:
            continue
        total += dual * (program.row_lower[row] if dual > 0 else program.row_upper[row])
        for column, coefficient in zip(program.row_columns[row], program.row_coefficients[row], strict=True):
            reduced[column] -= dual * coefficient
    bounds = zip(reduced, program.lower, program.upper, strict=True)
    return total + sum(cost * (low if cost > 0 else high) for cost, low, high in bounds)
