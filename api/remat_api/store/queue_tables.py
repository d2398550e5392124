"""procrastinate's own tables (see `jobs.deliveries`), brought to the version that is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from procrastinate.schema import SchemaManager

_APPLIED = sa.table("queue_migrations", sa.column("name"))


def migrate_queue(connection: sa.Connection) -> None:
    """Runs the scripts that have not run yet, and notes them."""
    folder = Path(SchemaManager.get_migrations_path())
    known = sorted((path.name for path in folder.glob("*.sql")), key=_version)
    if not sa.inspect(connection).has_table("procrastinate_jobs"):
        _run_script(connection, SchemaManager.get_schema())
        pending: list[str] = []
        new = known
    else:
        applied = set(connection.execute(sa.select(_APPLIED.c.name)).scalars())
        pending = new = [name for name in known if name not in applied]
    for name in pending:
        _run_script(connection, (folder / name).read_text())
    if new:
        connection.execute(sa.insert(_APPLIED), [{"name": name} for name in new])


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name.split("_pre_")[0].split("_post_")[0])[:4])


def _run_script(connection: sa.Connection, script: str) -> None:
    """Runs many statements at once, which SQLAlchemy's own call can't."""
    driver: Any = connection.connection.driver_connection
    driver.execute(script)
