"""Capture, measure and apply for PyTorch: the only part of Remat that imports torch."""

from remat.torch.backend import Backend
from remat.torch.capture import capture
from remat.torch.compile import apply, compile, planned_graphs, remove  # noqa: A004
from remat.torch.measure import measure
from remat.torch.peak import measure_peak
from remat.torch.record import PlannedGraph
from remat.torch.step import Step

__all__ = [
    "Backend",
    "PlannedGraph",
    "Step",
    "apply",
    "capture",
    "compile",
    "measure",
    "measure_peak",
    "planned_graphs",
    "remove",
]
