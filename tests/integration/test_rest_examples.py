"""Every command of docs/rest.md, run as written against a real service."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from remat_api.problems import status_code
from remat_solver.errors import RematError
from tests.integration.solver_service import SolverService

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"


def test_every_command_of_the_page_works(service: SolverService, tmp_path: Path) -> None:
    commands = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    # --fail-with-body makes curl's exit code tell; the page shows plain commands.
    script = 'set -euo pipefail\ncurl() { command curl --fail-with-body "$@"; echo; }\n' + "\n".join(commands)
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={"URL": service.url, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for expected in ('"state":"done"', '"least_budget_bytes"', "event: done", '"schedule"', '"ready":true'):
        assert expected in run.stdout
    repeated = re.findall(r'"id":"([0-9a-f]{32})"', run.stdout)[-2:]
    assert repeated[0] == repeated[1]


def test_the_table_of_problems_is_that_of_the_code() -> None:
    """Each named problem exists and has the status of its row."""
    rows = re.findall(r"^\| ([0-9, ]+) \| (`.*`) \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 5
    for statuses, names in rows:
        for name in re.findall("`([a-z-]+)`", names):
            error = RematError.by_slug[name]("x")
            assert name == "service-error" or str(status_code(error)) in statuses.split(", "), name
