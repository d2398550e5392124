"""The same promises on CUDA; these run wherever a CUDA device is present."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import remat
from remat.models import gpt_step
from remat.torch import random_state
from remat.torch.allocation import CUDA_BLOCK_BYTES, allocated_bytes
from remat.torch.joint_capture import compiled_call
from remat.torch.peak import measure_peak
from remat.torch.running_out import shortage_of
from remat_solver.errors import ApplyError
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


@pytest.mark.gpu
@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("spare", [0.9, 0.7])
def test_a_device_that_runs_out_gets_a_smaller_plan(spare: float) -> None:
    """PyTorch is allowed a part of the device that the first plan exceeds."""

    def gradients(**settings: Any) -> tuple[list[torch.Tensor], torch.nn.Module]:
        step = gpt_step(device="cuda")
        model = (
            remat.compile(step.model, budget="95%", optimizer=step.optimizer, **settings) if settings else step.model
        )
        torch.manual_seed(0)
        model(*step.args).backward()
        if settings:
            (record,) = remat.torch.planned_graphs(model)
            above = record.predicted_peak_bytes - record.graph.fixed_bytes
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            allowed = torch.cuda.memory_reserved() + int(spare * above)
            torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
            torch.manual_seed(0)
            model(*step.args).backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None], model

    expected, _ = gradients()
    try:
        seen, model = gradients(on_oom="replan")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(map(torch.equal, expected, seen))
    (record,) = remat.torch.planned_graphs(model)
    assert record.plan.recompute_count


@pytest.mark.gpu
def test_a_generators_state_is_not_read_into_a_cuda_graph() -> None:
    with pytest.raises(ApplyError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        random_state.read(torch.device("cuda"))


@pytest.mark.gpu
def test_a_failure_of_the_allocator_says_what_was_asked_for() -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
    shortage = shortage_of(caught.value, torch.device("cuda"))
    assert shortage.requested_bytes >= 0.99 * 2**50
    assert shortage.held_bytes == torch.cuda.memory_allocated()
