"""python -m tests.client.torch_distributed.worker RANK FILE: one of two processes; prints what came of it as JSON.

Both train every case plainly and planned; this process compares the two, on its own rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import remat
from remat.torch.attachment import attach, planned_graphs
from remat.torch.backend import Backend
from remat_solver.errors import ApplyError
from tests.client.torch_exact.networks import Mlp, Normalised, rows
from tests.client.torch_exact.schedules import evict_all, planner_of

STEPS = 3
Trained = tuple[list[Tensor], int]
Wrap = Callable[[nn.Module], nn.Module]


class Summed(Mlp):
    """Layers whose result is the sum of what each rank made."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = all_reduce(torch.relu(layer(x)), "sum", dist.group.WORLD)
        return x.square().mean()


def planned(model: nn.Module) -> nn.Module:
    """The model under a plan that recomputes all it can."""
    attach(model, Backend(model=model, planner=planner_of(evict_all), measure=lambda graph: graph))
    return model


def compiled(model: nn.Module) -> nn.Module:
    """The model as its user would have it: measured, and planned under a budget."""
    return remat.compile(model, budget="100%")


def replicated(wrap: Wrap) -> Trained:
    """DistributedDataParallel around a model with BatchNorm, in many buckets."""
    inner = wrap(Normalised())
    model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.001)  # type: ignore[arg-type]
    seen = trained(model, lambda: (torch.randn(3, 3, 6, 6), torch.randint(4, (3,))))
    return seen, len(planned_graphs(inner))


def sharded(wrap: Wrap) -> Trained:
    """Blocks planned one by one, each sharded after that, and the whole."""
    model = Mlp()
    for layer in model.layers:
        wrap(layer)
        fully_shard(layer)
    fully_shard(model)
    seen = trained(model, lambda: (rows(),))
    return seen, sum(len(planned_graphs(layer)) for layer in model.layers)


def together(wrap: Wrap) -> Trained:
    """A model with collectives among its ops, which no rank may run or measure alone."""
    model = wrap(Summed())
    return trained(model, lambda: (rows(),)), len(planned_graphs(model))


def trained(model: nn.Module, batch_of: Callable[[], tuple[Tensor, ...]]) -> list[Tensor]:
    """Losses and gradients of every step, then buffers and parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Tensor] = []
    for step in range(STEPS):
        torch.manual_seed(10 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = model(*batch_of())
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        seen += [loss.detach(), *(local(gradient).clone() for gradient in gradients)]
        optimizer.step()
    return seen + [local(tensor.detach()) for tensor in (*model.buffers(), *model.parameters())]


def local(tensor: Tensor) -> Tensor:
    """This process's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def compared(way: Callable[[Wrap], Trained], wrap_planned: Wrap = planned) -> dict[str, int | bool]:
    """How the two trainings compare."""
    runs = []
    for wrap in (lambda model: model, wrap_planned):
        torch.manual_seed(0)
        runs.append(way(wrap))
    (plain, _), (ours, graphs) = runs
    same = len(plain) == len(ours) and all(torch.equal(one, other) for one, other in zip(plain, ours, strict=True))
    return {"identical": same, "graphs": graphs, "tensors": len(plain)}


def refusal() -> str:
    """What planning a model says whose parts are sharded."""
    model = Mlp()
    for layer in model.layers:
        fully_shard(layer)
    try:
        remat.compile(model, budget="100%")(rows())
    except ApplyError as error:
        return str(error)
    return ""


def main() -> None:
    """Runs this process's part."""
    rank, file = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    outcome = {
        "replicated": compared(replicated),
        "sharded": compared(sharded),
        "together": compared(together, compiled),
        "refusal": refusal(),
    }
    dist.destroy_process_group()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
