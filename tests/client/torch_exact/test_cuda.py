"""The same promises on CUDA; these run wherever a CUDA device is present."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import remat
from remat.models import gpt_step
from remat.torch import random_state
from remat.torch.allocation import CUDA_BLOCK_BYTES, allocated_bytes
from remat.torch.joint_capture import compiled_call
from remat.torch.peak import measure_peak
from tests.client.torch_exact import schedules
from tests.client.torch_exact.networks import CASES
from tests.client.torch_exact.training import Case, differences, seeded_model, train, train_planned


@pytest.fixture
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that give the same bits each time: without them eager does not even equal itself."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_cuda_blocks_are_rounded_up() -> None:
    cuda = torch.device("cuda")
    assert [allocated_bytes(size, cuda) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    assert CUDA_BLOCK_BYTES == 512
    assert allocated_bytes(513, torch.device("cpu")) == 513


def test_cuda_random_states_cost_the_device_nothing() -> None:
    assert random_state.state_bytes(torch.device("cuda")) == 0


@pytest.mark.gpu
@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_schedule_trains_like_the_unplanned_trace(case: Case) -> None:
    case = replace(case, device="cuda")
    model = seeded_model(case)
    model._compiled_call_impl = compiled_call(model, torch._dynamo.lookup_backend("aot_eager"))
    expected = train(case, model)
    for scheduler in (schedules.store_all, schedules.evict_all, schedules.evicting_at_random(0, 0.4)):
        seen, _ = train_planned(case, scheduler)
        assert differences(expected, seen) == []


@pytest.mark.gpu
def test_the_peak_on_cuda_stays_within_its_budget() -> None:
    step = gpt_step(device="cuda")
    model = remat.compile(step.model, budget="60%", optimizer=step.optimizer)

    def run() -> None:
        model(*step.args).backward()

    run()
    model.zero_grad()
    measured = measure_peak(run, "cuda").peak_bytes_above_start
    (record,) = remat.torch.planned_graphs(model)
    predicted = record.predicted_peak_bytes - record.graph.fixed_bytes
    assert measured <= record.plan.budget_bytes - record.graph.fixed_bytes
    assert abs(predicted - measured) <= 0.005 * measured
