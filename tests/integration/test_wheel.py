"""The wheel as users get it: installed into an empty environment, it serves without torch, pages and all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from remat.client import Client
from tests.integration.solver_service import SolverService
from tests.integration.training_graphs import QUICK_OPS, uneven_chain

ROOT = Path(__file__).parent.parent.parent


def run(*command: str | Path) -> str:
    """What a command prints."""
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel and its extra `server`."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("remat-*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    program = folder / "venv" / "bin" / "python"
    run(program, "-m", "pip", "install", "--quiet", f"{wheel}[server]")
    return program


@pytest.mark.full
def test_the_wheel_serves_without_torch(python: Path, tmp_path: Path) -> None:
    found = run(
        python, "-c", "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('remat_api').origin)"
    )
    assert found.startswith("None ")
    assert str(ROOT) not in found
    service = SolverService(tmp_path, python=python, PYTHONPATH="", PATH=os.environ["PATH"])
    service.start()
    try:
        with Client(service.url, plan_cache=None) as client:
            graph = uneven_chain(QUICK_OPS)
            assert client.solve(graph, budget_fraction=0.7).peak_bytes > 0
        page = httpx.get(f"{service.url}/dashboard")
        assert page.status_code == 200
        files = set(re.findall(r'(?:src|href)="(/dashboard/assets/[^"]+)"', page.text))
        assert len(files) == 7
        for file in files:
            assert httpx.get(service.url + file).status_code == 200
    finally:
        service.stop()
