"""Training steps by name: the demo's, those that are compared with peers, and one whose ops take no time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.peers.networks import NETWORKS
from remat.models import DEMO_STEPS
from remat.torch import Step

TINY_LAYERS = 100
TINY_WIDTH = 4


class Tiny(nn.Module):
    """Many ops on a few numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(TINY_WIDTH, TINY_WIDTH) for _ in range(TINY_LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return x.sum()


def _tiny_step() -> Step:
    torch.manual_seed(0)
    return Step(Tiny(), args=(torch.randn(2, TINY_WIDTH),))


STEPS: dict[str, Callable[[], Step]] = {
    "tiny": _tiny_step,
    **{name: network.make_step for name, network in NETWORKS.items()},
    **DEMO_STEPS,
}
