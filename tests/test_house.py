"""What holds for the whole house: the public surface, its weight, and that each dependency has a reason."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import remat

ROOT = Path(__file__).parent.parent


def test_public_names() -> None:
    assert remat.__all__ == [
        "Backend",
        "Client",
        "Graph",
        "Op",
        "Plan",
        "RematError",
        "SolveOptions",
        "Step",
        "Value",
        "apply",
        "capture",
        "compile",
        "fits",
        "frontier",
        "largest_batch",
        "load",
        "measure",
        "minimum_budget",
        "remove",
        "report",
        "save",
        "simulate",
        "solve",
        "verify",
    ]
    for name in remat.__all__:
        assert getattr(remat, name).__doc__, name


def test_importing_is_light() -> None:
    source = "import sys, remat; print(' '.join(sorted({n.split('.')[0] for n in sys.modules})))"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    for heavy in ("torch", "numpy", "pulp", "pydantic", "fastapi", "sqlalchemy", "httpx", "rich", "jinja2"):
        assert heavy not in loaded


def test_the_service_needs_no_torch() -> None:
    source = "import sys, remat_api.app; print('torch' in sys.modules, 'remat' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["False", "False"]


def test_every_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[\[<>=;~ ]", requirement)[0] for requirement in wanted} - {"remat"}
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    assert not {name for name in names if not re.search(rf"\b{re.escape(name)}\b", reasons)}
