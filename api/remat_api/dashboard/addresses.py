"""Where the pages and their files are."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

from fastapi import Request

from remat_solver.charts import asset

OWN_FILES = ("dashboard.css", "dashboard.js", "htmx.min.js", "icon.svg")
CHART_FILES = ("charts.js", "uPlot.iife.min.js", "uPlot.min.css")


def base_of(request: Request) -> str:
    """The dashboard's path as browsers see it, whatever a proxy put before it."""
    return f"{request.scope.get('root_path', '').rstrip('/')}/dashboard"


def assets_of(request: Request) -> str:
    """The folder of scripts and styles. It is named after their content, so that browsers may keep them for good."""
    return f"{base_of(request)}/assets/{_fingerprint()}"


def file_text(name: str) -> str:
    """The text of one of `OWN_FILES` or `CHART_FILES`."""
    if name in CHART_FILES:
        return asset(name)
    return resources.files("remat_api.dashboard").joinpath("assets", name).read_text(encoding="utf-8")


@functools.cache
def _fingerprint() -> str:
    text = "".join(file_text(name) for name in (*OWN_FILES, *CHART_FILES))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
