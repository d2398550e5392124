"""Capture, measure and apply for PyTorch: the only part of Remat that imports torch."""

from remat.torch.attachment import apply, planned_graphs, remove
from remat.torch.backend import Backend
from remat.torch.capture import capture
from remat.torch.compile import compile  # noqa: A004
from remat.torch.measure import measure
from remat.torch.record import PlannedGraph
from remat.torch.report import report
from remat.torch.step import Step
from remat.torch.verify import verify

__all__ = [
    "Backend",
    "PlannedGraph",
    "Step",
    "apply",
    "capture",
    "compile",
    "measure",
    "planned_graphs",
    "remove",
    "report",
    "verify",
]
