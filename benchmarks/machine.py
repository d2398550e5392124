"""Where and when a table was made, and with which versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def describe_machine() -> dict[str, str]:
    """Date, processor, cores and versions: what a committed table needs to be read later."""
    versions = {name: _version(name) for name in ("remat", "pulp", "highspy", "ortools")}
    cores = str(os.cpu_count())
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"date": date, "cores": cores, "python": platform.python_version(), "machine": _processor(), **versions}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
