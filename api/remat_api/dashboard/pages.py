"""Templates, and what all of them need."""

from __future__ import annotations

import functools
import importlib.metadata
import json
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse

from remat_api.dashboard.addresses import assets_of, base_of
from remat_api.dashboard.visitor import Visitor
from remat_api.problems import title
from remat_api.store.clock import iso_time, now_ms
from remat_solver.budget import format_bytes
from remat_solver.errors import RematError


def render(
    template: str, request: Request, visitor: Visitor | None, *, status: int = 200, **figures: Any
) -> HTMLResponse:
    """A page. `visitor` is None where nobody has signed in."""
    text = _environment().get_template(f"{template}.html.jinja")
    return HTMLResponse(
        text.render(
            base=base_of(request),
            assets=assets_of(request),
            path=request.url.path,
            visitor=visitor,
            csrf_token=visitor.session.csrf_token if visitor else "",
            version=importlib.metadata.version("remat"),
            **figures,
        ),
        status,
    )


def render_error(request: Request, error: RematError, status: int) -> HTMLResponse:
    """An error as a page."""
    return render("error", request, None, status=status, heading=title(error.slug), error=error)


def embedded(figures: dict[str, Any]) -> str:
    """Figures as JSON that may stand inside a page's script element."""
    return json.dumps(figures, separators=(",", ":")).replace("<", "\\u003c")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("remat_api.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": format_bytes,
        "percent": _percent,
        "milliseconds": _milliseconds,
        "moment": _moment,
        "age": _age,
        "iso": iso_time,
        "question": _question,
    }
    return environment


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.2f}%"  # noqa: RUF001


def _milliseconds(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.2f} ms"


def _moment(moment_ms: int | None) -> str:
    text = iso_time(moment_ms)
    return "never" if text is None else f"{text[:10]} {text[11:19]}"


def _age(moment_ms: int) -> str:
    """How long ago, in the largest unit that fits."""
    seconds = max(0, now_ms() - moment_ms) // 1000
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds // length_s} {unit}"
    return f"{seconds} s"


def _question(options: dict[str, Any], points: int | None) -> str:
    """What was asked, in a few words."""
    if points is not None:
        return f"frontier, {points} points"
    if options.get("max_overhead") is not None:
        return f"least memory, overhead ≤ {options['max_overhead'] * 100:g}%"
    if options.get("budget_bytes") is not None:
        return f"budget {format_bytes(options['budget_bytes'])}"
    return f"budget {options['budget_fraction'] * 100:g}%"
