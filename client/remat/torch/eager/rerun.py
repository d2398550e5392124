"""What it takes to run a region again, measured as a whole.

Beside its ops that is hooks, dispatch modes and autograd's records: microseconds per op on small tensors, and several
times that between large ones, which push Python out of the processor's caches.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from remat.torch.allocation import tensors_in
from remat.torch.autocast import forget_casts, outside_autocast
from remat.torch.eager.plan import OpCall, RegionPlan
from remat.torch.eager.region_call import RegionCall
from remat.torch.eager.regions import own_call

ROUNDS = 5
"""How often both ways are timed, in turns; the median of the differences counts."""


def rerun_ns(module: nn.Module, arguments: Any, saved: frozenset[OpCall], *, has_side_effects: bool) -> int:
    """The time of the region's forward and backward with a recompute that saves next to nothing, less that without."""
    planned = RegionCall("", module)
    planned.plan = RegionPlan(saved=saved, draws=(), has_side_effects=has_side_effects, saved_bytes=0, recompute_ns=0)
    times = [[_time(call, module, arguments) for call in (own_call(module), planned)] for _ in range(ROUNDS)]
    return max(0, round(median(again - own for own, again in times)))


def _time(call: Any, module: nn.Module, arguments: Any) -> int:
    now = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    args, kwargs = arguments
    forget_casts()
    start = now()
    results = [tensor for tensor in tensors_in(call(*args, **kwargs)) if tensor.requires_grad]
    inputs = [tensor for tensor in (*module.parameters(), *tensors_in(arguments)) if tensor.requires_grad]
    if results:
        ones: list[Tensor] = [torch.ones_like(result) for result in results]
        with outside_autocast():
            torch.autograd.grad(results, inputs, ones, allow_unused=True)
    return now() - start
