"""One self-contained HTML page that shows plans: timelines, the frontier, what is recomputed, the proof.

The page needs no network: styles, script and data are inside it. Every chart has a table twin.
"""

from remat.page.render import PlannedModel, render_page

__all__ = ["PlannedModel", "render_page"]
