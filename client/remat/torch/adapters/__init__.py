"""Hints about the models of particular libraries, so that they are traced as eager mode runs them, in one graph.

An adapter changes nothing that a model computes. It takes out of the trace what only stands in its way: work
that a model does once in its first call, and branches that a library takes only because it is being traced.
"""

from __future__ import annotations

from torch import nn

from remat.torch.adapters.adapter import Adapter
from remat.torch.adapters.huggingface import HuggingFaceAdapter, pretrained_models_in

__all__ = ["Adapter", "adapter_for"]


def adapter_for(model: nn.Module) -> Adapter:
    """The adapter for `model`; one that does nothing if no library is known to need it."""
    pretrained = pretrained_models_in(model)
    return HuggingFaceAdapter(model, pretrained) if pretrained else Adapter()
