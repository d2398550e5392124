"""CBC's process: found, limited, stopped, killed, and never left behind. Always the real program."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remat_solver.engines import pulp_model
from remat_solver.engines.base import Limits
from remat_solver.engines.cbc import Cbc
from remat_solver.engines.cbc_binary import SETTING, find_cbc
from remat_solver.engines.cbc_log import CbcLog, last_place
from remat_solver.errors import EngineFailed, EngineMissing
from tests.solver.mip_programs import (
    enumerate_optimum,
    hard_cover,
    infeasible,
    knapsack_cover,
    market_split,
    random_program,
)

LONG = Limits(time_limit_s=300)


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrapCbc:
    return WrapCbc(find_cbc(), tmp_path, monkeypatch)


class WrapCbc:
    """Makes REMAT_CBC a shell script that does something before (or instead of) becoming the real CBC."""

    def __init__(self, cbc: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cbc = cbc
        self.pid_file = folder / "pid"
        self._script = folder / "cbc.sh"
        self._monkeypatch = monkeypatch

    def __call__(self, lines: str) -> None:
        self._script.write_text(f"#!/bin/sh\necho $$ > {self.pid_file}\n{lines}\n")
        self._script.chmod(0o755)
        self._monkeypatch.setenv(SETTING, str(self._script))


def test_a_killed_cbc_is_a_failure(wrapped: WrapCbc) -> None:
    wrapped(f'(sleep 0.5; kill -KILL $$) & exec {wrapped.cbc} "$@"')
    with pytest.raises(EngineFailed, match="by signal 9") as caught:
        Cbc().solve(market_split(), LONG)
    assert caught.value.engine == "cbc"


@pytest.mark.parametrize("lines", ["exit 0", "exit 3", "echo nonsense"])
def test_a_program_that_is_no_cbc_is_a_failure(wrapped: WrapCbc, lines: str) -> None:
    wrapped(lines)
    with pytest.raises(EngineFailed):
        Cbc().solve(knapsack_cover()[0], LONG)
    with pytest.raises(EngineFailed):
        Cbc().version()


@pytest.mark.parametrize("answer", ["Optimal\n 0 X0000000", "Optimal\n 0 X0000000 one 0", "Optimal\n"])
def test_an_answer_that_is_none_is_a_failure(wrapped: WrapCbc, answer: str) -> None:
    wrapped(f'for last; do :; done; printf "{answer}" > "$last"')
    with pytest.raises(EngineFailed):
        Cbc().solve(knapsack_cover()[0], LONG)


def test_too_little_memory_is_a_failure() -> None:
    with pytest.raises(EngineFailed):
        Cbc(memory_bytes=40 * 2**20).solve(hard_cover(columns=20_000, rows=20_000), LONG)


def test_a_cbc_that_hears_nothing_is_killed(wrapped: WrapCbc) -> None:
    wrapped("trap '' INT; exec sleep 600")
    outcome = Cbc(grace_s=0.5).solve(knapsack_cover()[0], Limits(time_limit_s=0.2))
    assert outcome.termination == "no_solution"
    assert not is_running(int(wrapped.pid_file.read_text()))


def test_infeasible_is_not_believed_after_the_limit(wrapped: WrapCbc) -> None:
    """CBC 2.10.3 calls feasible programs infeasible when its time runs out in preprocessing."""
    wrapped(f'sleep 0.5; exec {wrapped.cbc} "$@"')
    assert Cbc().solve(infeasible(), Limits(time_limit_s=0.4)).termination == "no_solution"
    assert Cbc().solve(infeasible(), LONG).termination == "infeasible"


def test_no_orphan_when_the_parent_is_killed(wrapped: WrapCbc) -> None:
    wrapped(f'exec {wrapped.cbc} "$@"')
    code = (
        "from tests.solver.mip_programs import market_split; from remat_solver.engines.cbc import Cbc;"
        "from remat_solver.engines.base import Limits; Cbc().solve(market_split(), Limits(time_limit_s=300))"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join(entry for entry in (str(root), os.environ.get("PYTHONPATH", "")) if entry)
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": path})
    wait_until(lambda: wrapped.pid_file.exists() and bool(wrapped.pid_file.read_text()))
    cbc = int(wrapped.pid_file.read_text())
    assert is_running(cbc)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not is_running(cbc))


def test_no_orphan_when_a_callback_raises(wrapped: WrapCbc) -> None:
    wrapped(f'exec {wrapped.cbc} "$@"')

    def fail(objective: float, bound: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cbc().solve(hard_cover(), LONG, on_incumbent=fail)
    assert not is_running(int(wrapped.pid_file.read_text()))


def test_without_terminals_a_pipe_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError("out of pty devices")

    monkeypatch.setattr(pty, "openpty", refuse)
    program, optimum = knapsack_cover()
    assert Cbc().solve(program, LONG).objective == pytest.approx(optimum)


def test_a_setting_that_leads_nowhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "/nowhere/cbc")
    with pytest.raises(EngineMissing, match="/nowhere/cbc"):
        Cbc().solve(knapsack_cover()[0], LONG)


def test_cbc_is_looked_for_on_path_and_then_inside_pulp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pulp" in str(find_cbc())
    (tmp_path / "cbc").write_text("#!/bin/sh\n")
    (tmp_path / "cbc").chmod(0o755)
    assert find_cbc() == tmp_path / "cbc"
    (tmp_path / "cbc").unlink()
    monkeypatch.delattr(pulp_model.pulp, "PULP_CBC_CMD")  # what PuLP 4 will look like
    with pytest.raises(EngineMissing):
        find_cbc()


@pytest.mark.parametrize("limit", [0, 10_000])
def test_both_ways_to_write_a_model_agree(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp_model, "MAX_COLUMNS", limit)
    for seed in range(200, 240):
        program = random_program(seed)
        outcome = Cbc().solve(program, LONG)
        optimum = enumerate_optimum(program)
        assert (outcome.termination == "infeasible") == (optimum is None), seed
        if optimum is not None:
            assert outcome.objective == pytest.approx(optimum, abs=1e-5), seed


@pytest.mark.parametrize(
    ("text", "place"),
    [("3.14", 3.14e-5), ("212.08625", 1e-5), ("1.5e+06", 15.0), ("123456", 1.0), ("2", 2e-5), ("-1234.567", 1e-3)],
)
def test_printed_bounds_are_lowered_by_what_printing_may_have_added(text: str, place: float) -> None:
    assert last_place(text) == pytest.approx(place)


def test_the_log_keeps_the_best_bound_and_ignores_absent_incumbents() -> None:
    log = CbcLog()
    assert log.read("Continuous objective value is 209.637 - 0.02 seconds")
    assert not log.read("Cbc0038I Solution found of 445")
    assert not log.read("Cbc0010I After 0 nodes, 1 on tree, 1e+50 best solution, best possible 0 (0.26 seconds)")
    assert log.read("Cbc0012I Integer solution of 256 found by feasibility pump after 0 iterations and 0 nodes")
    assert log.read("Cbc0010I After 100 nodes, 9 on tree, 252 best solution, best possible 212.08625 (1.27 seconds)")
    assert log.read("Cbc0005I Partial search - best objective 250 (best possible 212.08625), took 9572 iterations")
    assert log.incumbent == 250
    assert log.bound == pytest.approx(212.08624, abs=1e-9)


def test_a_bound_of_a_linear_program_that_was_cut_short_is_not_believed() -> None:
    log = CbcLog()
    log.read("Continuous objective value is 162.241 - 0.05 seconds")
    log.read("Cbc0012I Integer solution of 360.17856 found by feasibility pump after 0 iterations and 0 nodes")
    log.read("Cbc0013I At root node, 337 cuts changed objective from 162.25726 to 1.0569217e+12 in 27 passes")
    log.read("Cbc0020I Exiting on maximum time")
    log.read("Cbc0005I Partial search - best objective 360.17856 (best possible 1.0569217e+12), took 6734 iterations")
    assert log.bound == pytest.approx(162.25725, abs=1e-9)
    assert not log.proved_optimal


def test_cuts_at_the_root_count_where_the_search_was_completed() -> None:
    log = CbcLog()
    log.read("Continuous objective value is 162.241 - 0.05 seconds")
    log.read("Cbc0013I At root node, 7 cuts changed objective from 162.241 to 170.126 in 2 passes")
    log.read("Result - Optimal solution found (within gap tolerance)")
    assert log.proved_optimal
    assert log.bound == pytest.approx(162.24, abs=1e-9)
    assert log.completed_bound == pytest.approx(170.125, abs=1e-9)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
