"""docker-compose.yml names commands, settings and health checks that exist, and works when started as processes."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from remat.client import Client
from remat_api.settings import ENVIRONMENT_PREFIX, Settings
from tests.integration.postgres_server import PostgresServer
from tests.integration.solver_service import RematProcess, SolverService, wait_until
from tests.integration.training_graphs import QUICK_OPS, uneven_chain

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
ADMIN_KEY = "the operator's own key, long enough"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the compose file."""
    read: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return read


def ours(services: dict[str, Any]) -> dict[str, Any]:
    """Those that run Remat's own image."""
    return {name: service for name, service in services.items() if service["image"].startswith("remat")}


def test_its_settings_are_settings(services: dict[str, Any]) -> None:
    known = {ENVIRONMENT_PREFIX + setting.name.upper() for setting in fields(Settings)}
    for name, service in ours(services).items():
        assert set(service["environment"]) <= known, name
    assert set(services) == {"postgres", "migrate", "api", "worker", "solo"}


def test_what_it_starts_is_started_in_order(services: dict[str, Any]) -> None:
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("api", "worker"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["solo"]["deploy"]["replicas"] == 1
    assert services["solo"]["profiles"] == ["solo"]
    assert all("healthcheck" in services[name] for name in ("postgres", "api", "worker", "solo"))


def test_its_topology_works_as_processes(services: dict[str, Any], postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()

    def environment(name: str, alive: str = "") -> dict[str, str]:
        values = {"REMAT_DATABASE_URL": url, "REMAT_ADMIN_KEY": ADMIN_KEY, "REMAT_ALIVE_FILE": alive}
        return {key: values.get(key) or _default(str(text)) for key, text in services[name]["environment"].items()}

    migrate = RematProcess(tmp_path / "migrate.log", *services["migrate"]["command"], **environment("migrate"))
    api = SolverService(
        tmp_path, *services["api"]["command"][1:], command=services["api"]["command"][0], **environment("api")
    )
    alive_files = [tmp_path / f"alive{number}" for number in range(services["worker"]["deploy"]["replicas"])]
    workers = [
        RematProcess(path.with_suffix(".log"), *services["worker"]["command"], **environment("worker", str(path)))
        for path in alive_files
    ]
    early = SolverService(tmp_path / "early", command="serve", REMAT_DATABASE_URL=url)
    early.folder.mkdir()
    with pytest.raises(AssertionError, match="Run `remat migrate`"):
        early.start()
    migrate.start()
    assert migrate.wait() == 0, migrate.printed()
    for process in workers:
        process.start()
    api.start()
    try:
        with Client(api.url, api_key=ADMIN_KEY, plan_cache=None) as client:
            for seed in range(4):
                assert client.solve(uneven_chain(QUICK_OPS, seed=seed), budget_fraction=0.6).peak_bytes > 0
        port = api.url.rpartition(":")[2]
        assert _passes(services["api"]["healthcheck"], "8417", port)
        for path in alive_files:
            wait_until(path.exists)
            assert _passes(services["worker"]["healthcheck"], "/tmp/alive", str(path))
        assert not _passes(services["worker"]["healthcheck"], "/tmp/alive", str(tmp_path / "nobody"))
    finally:
        for process in (api, *workers):
            process.stop()


def test_a_worker_without_a_postgresql_says_what_it_needs(tmp_path: Path) -> None:
    worker = RematProcess(tmp_path / "log", "worker")
    worker.start()
    assert worker.wait() == 1
    assert "REMAT_DATABASE_URL=postgresql://" in worker.printed()
    assert "Traceback" not in worker.printed()


def _default(text: str) -> str:
    """The value of a variable of the compose file's that nobody has set."""
    return re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", text)


def _passes(healthcheck: dict[str, Any], there: str, here: str) -> bool:
    """Whether a health check, with a name of the container's exchanged for ours, passes."""
    kind, program, *arguments = healthcheck["test"]
    assert (kind, program) == ("CMD", "python3")
    command = [sys.executable, *(argument.replace(there, here) for argument in arguments)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
