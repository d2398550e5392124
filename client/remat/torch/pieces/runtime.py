"""The backend of pieces mode: builds each graph that PyTorch brings by its schedule, and tells when it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from remat.torch.build import build
from remat.torch.contract import JointGraph
from remat.torch.executor import BoxedFunction
from remat.torch.intervals import IntervalWatcher
from remat.torch.joint_capture import JointBackend, Modules
from remat.torch.pieces.ways import BACKWARD, FORWARD, WAITING, nothing_saved
from remat_solver.graph import Graph

_PIECE = "remat_piece"
_log = logging.getLogger("remat")


@dataclass(kw_only=True)
class Pieces:
    """The graphs into which PyTorch cut a model, in the order in which they came.

    `schedules` has the steps of each by its structure; one that isn't there runs with nothing saved, and once the
    pieces are `complete`, that is said aloud. While there is a `watcher`, it is told who plays which role.
    """

    measure: Callable[[Graph], Graph]
    schedules: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)
    watcher: IntervalWatcher | None = None
    complete: bool = False

    def backend(self) -> JointBackend:
        """The backend to compile the model with, not as one graph."""
        return JointBackend(self._on_joint, wrap=self._watched)

    def _on_joint(self, joint: JointGraph, _trace_s: float) -> Modules:
        structure = joint.graph.structure_hash
        if self.complete and structure not in self.schedules:
            _log.warning(
                "A graph of %d ops came up that was in no trial step. It runs with nothing saved, but the budget was "
                "not checked for steps with it.",
                len(joint.graph),
            )
        built = build(joint, self.schedules.get(structure) or nothing_saved(joint.graph))
        for module in (built.forward, built.backward):
            module.meta[_PIECE] = len(self.graphs)
        self.graphs.append(joint.graph if self.complete else self.measure(joint.graph))
        return built.forward, built.backward

    def _watched(self, module: fx.GraphModule, phase: str, function: BoxedFunction) -> BoxedFunction:
        piece = module.meta.get(_PIECE)
        if piece is None:  # no gradients: nothing of ours to plan
            return function
        before = None if phase == FORWARD else f"{piece} {WAITING}"
        during = f"{piece} {FORWARD if phase == FORWARD else BACKWARD}"
        after = f"{piece} {WAITING}" if phase == FORWARD else None

        def run(arguments: list[Any]) -> Any:
            if self.watcher is None:
                return function(arguments)
            self.watcher.change(before, during)
            result = function(arguments)
            self.watcher.change(during, after)
            return result

        run._boxed_call = True  # type: ignore[attr-defined]  # how PyTorch knows that the list may be emptied
        return run
