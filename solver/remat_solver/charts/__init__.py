"""What plans look like: the figures behind each chart, and the script that draws them.

The offline page of the SDK and the service's dashboard show the same charts, so they live here: `uPlot` and `charts.js`
draw whatever elements of a page carry `data-chart`, from the JSON beside them. Every chart has a table twin.
"""

from __future__ import annotations

from importlib import resources


def asset(name: str) -> str:
    """The text of a script or style sheet of this folder."""
    return resources.files("remat_solver.charts").joinpath(name).read_text(encoding="utf-8")
