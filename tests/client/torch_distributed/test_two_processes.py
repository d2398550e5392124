"""Two processes: DistributedDataParallel around a planned model, and planned blocks that `fully_shard` shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HANGS_AFTER_S = 900


def test_two_processes_train_as_without_plans(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.client.torch_distributed.worker"]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        spoken = [worker.communicate(timeout=HANGS_AFTER_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (out, err) in zip(workers, spoken, strict=True):
        assert worker.returncode == 0, err
        outcome = json.loads(out.splitlines()[-1])
        assert outcome["replicated"]["identical"]
        assert outcome["replicated"]["graphs"] == 1
        assert outcome["sharded"]["identical"]
        assert outcome["sharded"]["graphs"] == 4
        assert outcome["together"]["identical"]
        assert outcome["together"]["graphs"] == 1
        assert outcome["replicated"]["tensors"] > outcome["sharded"]["tensors"] > 20
        assert "sharded by fully_shard" in outcome["refusal"]
