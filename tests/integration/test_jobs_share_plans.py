"""Training jobs in processes of their own: ranks ask once, and the next job of the same model finds the plan."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.integration.solver_service import SolverService

PATIENCE_S = 600.0


def start(service: SolverService, home: Path, *arguments: str) -> subprocess.Popen[str]:
    """A job on a machine of its own: nothing is shared with others but the service."""
    environment = {**os.environ, "REMAT_CACHE_DIR": str(home), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.integration.training_job", service.url, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def figures_of(job: subprocess.Popen[str]) -> dict[str, Any]:
    """What the job printed, once it is over."""
    printed, complaints = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, complaints
    figures: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return figures


def questions(service: SolverService) -> float:
    """How many questions the service has been asked, plans by key apart."""
    text = httpx.get(f"{service.url}/metrics").text
    return sum(float(number) for number in re.findall(r"^remat_questions_total\{.*\} (\S+)$", text, re.MULTILINE))


def test_ranks_ask_once_and_the_next_job_hits(service: SolverService, tmp_path: Path) -> None:
    before = questions(service)
    ranks = [start(service, tmp_path / f"rank {rank}", str(rank), str(tmp_path / "store")) for rank in range(2)]
    first, second = (figures_of(rank) for rank in ranks)
    assert first["graph"] == second["graph"]
    assert first["loss"] == second["loss"]
    assert min(first["measure_s"], second["measure_s"]) == 0.0 < max(first["measure_s"], second["measure_s"])
    assert questions(service) == before + 1
    next_job = figures_of(start(service, tmp_path / "elsewhere"))
    assert next_job["graph"] == first["graph"]
    assert next_job["loss"] == first["loss"]
    assert questions(service) == before + 1  # the plan came by its key: nothing was asked
