"""One training job as a process of its own: `python -m tests.integration.training_job ENDPOINT [RANK STORE]`.

It plans a small model and trains it for a step. With a rank and a file for the store it is one of two ranks. It prints
one JSON line: the hash of the planned graph, the seconds spent on measuring, and the loss.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import distributed, nn

import remat
from remat.torch.attachment import planned_graphs


def main() -> None:
    """Runs the job."""
    endpoint, *rank_and_store = sys.argv[1:]
    if rank_and_store:
        rank, store = rank_and_store
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    torch.manual_seed(0)
    layers = [module for _ in range(4) for module in (nn.Linear(64, 64), nn.Tanh())]
    model = remat.compile(nn.Sequential(*layers), budget="90%", endpoint=endpoint)
    loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    (record,) = planned_graphs(model)
    figures = {"graph": record.graph.hash, "measure_s": record.measure_s, "loss": loss.item()}
    print(json.dumps(figures), flush=True)
    if rank_and_store:
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
