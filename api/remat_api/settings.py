"""Every setting of the service, read once from the environment and checked before anything starts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from remat_solver.errors import InvalidRequest

ENVIRONMENT_PREFIX = "REMAT_"
MIN_ADMIN_KEY_LENGTH = 32
MIN_STALLED_AFTER_S = 3.0
"""Three beats: fewer, and a busy machine loses jobs."""
_POSTGRESQL_PREFIXES = ("postgresql://", "postgres://", "postgresql+psycopg://")
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "Path": Path,
    "bool": lambda text: _FLAGS[text.lower()],
}


def default_data_dir() -> Path:
    """Where the service keeps its database and blobs unless told otherwise (the XDG state folder)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "remat"


def _spare_cores() -> int:
    """All cores but the one that answers requests."""
    return max(1, (os.cpu_count() or 1) - 1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one service process runs. Each field is also an environment variable, `REMAT_` + its name.

    `database_url`: a PostgreSQL (postgresql://user:password@host/name) shared by several services and workers;
    without one it is SQLite in `data_dir`, for one service. `workers`: jobs solved at once by this process;
    beside a PostgreSQL the service solves none itself, `remat worker` does. `threads_per_job`: a job that asks
    for more gets this many. `max_wire_bytes` bounds a request body as sent, `max_body_bytes` after
    decompression. `max_wait_s` bounds `Prefer: wait`. `max_attempts`: a job whose worker died this often fails.
    `stalled_after_s`: a job whose worker is silent for so long is given to another (workers beat every second).
    `drain_s`: how long running jobs may go on when the service stops; what is unfinished then is solved after
    the next start. `job_memory_bytes`: address space of one worker and its engine; 0 sets no limit.
    `alive_file`: a worker of a PostgreSQL touches it whenever it has reached the database, for health checks.
    `require_keys`: every request must show an API key. `insecure`: answer others without keys.
    `admin_key`: a key of the operator's own choice that may do everything (32 characters or more).
    `session_secret` signs the dashboard's sessions; by default one is made and kept in the data folder.
    `proxy_headers`: addresses or networks (comma-separated) whose X-Forwarded-For and -Proto are believed.
    `root_path`: the path under which a proxy shows the service, as in "/remat".
    `otlp_endpoint`: where OpenTelemetry spans go, as in "http://collector:4318"; none are made without it.
    `requests_per_minute` for each caller; 0 sets no limit.
    `log_format`: "json", "text", or "auto" (text on a terminal). `log_level`: debug, info, warning or error.
    """

    data_dir: Path
    database_url: str = field(default="", repr=False)
    workers: int = _spare_cores()
    threads_per_job: int = 1
    max_wire_bytes: int = 32 * 2**20
    max_body_bytes: int = 64 * 2**20
    max_ops: int = 50_000
    max_wait_s: float = 30.0
    max_attempts: int = 3
    stalled_after_s: float = 30.0
    max_queued_jobs: int = 10_000
    drain_s: float = 2.0
    job_memory_bytes: int = 0
    alive_file: str = ""
    require_keys: bool = False
    insecure: bool = False
    admin_key: str = field(default="", repr=False)
    session_secret: str = field(default="", repr=False)
    proxy_headers: str = ""
    root_path: str = ""
    otlp_endpoint: str = ""
    requests_per_minute: int = 0
    log_format: str = "auto"
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name in ("workers", "threads_per_job", "max_wire_bytes", "max_body_bytes", "max_ops", "max_attempts"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"the setting {name} is {getattr(self, name)}; it must be at least 1.", field=name)

        if self.stalled_after_s < MIN_STALLED_AFTER_S:
            raise InvalidRequest(
                f"the setting stalled_after_s is {self.stalled_after_s}; it must be at least {MIN_STALLED_AFTER_S:g}.",
                field="stalled_after_s",
            )
        if self.database_url and not self.database_url.startswith(_POSTGRESQL_PREFIXES):
            raise InvalidRequest(
                "the setting database_url is no address of a PostgreSQL database.",
                hint="Write it as postgresql://user:password@host/name, or leave it out for SQLite in the data folder.",
                field="database_url",
            )
        _check_choice("log_format", self.log_format, ("auto", "json", "text"))
        _check_choice("log_level", self.log_level, ("debug", "info", "warning", "error"))
        if self.root_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root_path):
            raise InvalidRequest(
                f"the setting root_path is {self.root_path!r}.",
                hint='Write it as "/remat", without a slash at the end.',
                field="root_path",
            )
        if self.admin_key and len(self.admin_key) < MIN_ADMIN_KEY_LENGTH:
            raise InvalidRequest(
                f"admin_key is shorter than {MIN_ADMIN_KEY_LENGTH} characters.",
                hint='Make one: python3 -c "import secrets; print(secrets.token_urlsafe(32))".',
                field="admin_key",
            )

    @property
    def logs_json(self) -> bool:
        """Whether log lines are JSON."""
        return self.log_format == "json" or (self.log_format == "auto" and not sys.stderr.isatty())

    @property
    def is_clustered(self) -> bool:
        """Whether the database is a PostgreSQL that other processes use too."""
        return bool(self.database_url)

    @property
    def sqlalchemy_url(self) -> str:
        """The database's URL, which names the driver."""
        if self.is_clustered:
            return "postgresql+psycopg://" + self.database_url.partition("://")[2]
        return f"sqlite:///{self.data_dir / 'remat.db'}"

    @property
    def libpq_url(self) -> str:
        """The PostgreSQL's URL as PostgreSQL's own tools take it."""
        return "postgresql://" + self.database_url.partition("://")[2]


def read_settings(environment: Mapping[str, str], **given: Any) -> Settings:
    """Settings from `environment`, overridden by every keyword that is not None.

    Raises `InvalidRequest` for a variable that can't be read.
    """
    found: dict[str, Any] = {"data_dir": default_data_dir()}
    for setting in fields(Settings):
        text = environment.get(ENVIRONMENT_PREFIX + setting.name.upper())
        if text is not None:
            found[setting.name] = _read(setting.name, str(setting.type), text)
    found.update({name: value for name, value in given.items() if value is not None})
    return Settings(**found)


def _read(name: str, kind: str, text: str) -> Any:
    readers: dict[str, Any] = {
        "int": int,
        "float": float,
        "str": str,
        "Path": Path,
        "bool": lambda flag: _FLAGS[flag.lower()],
    }
    try:
        return readers[kind](text)
    except (ValueError, KeyError):
        raise InvalidRequest(
            f"{ENVIRONMENT_PREFIX}{name.upper()} is {text!r}, which is no {kind}.", field=name
        ) from None


def _check_choice(name: str, choice: str, choices: tuple[str, ...]) -> None:
    if choice not in choices:
        raise InvalidRequest(
            f"the setting {name} is {choice!r}.", hint=f"Choose one of {', '.join(choices)}.", field=name
        )
