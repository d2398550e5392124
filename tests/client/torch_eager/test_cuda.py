"""Eager mode on CUDA; these run wherever a CUDA device is present."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import remat
from remat.torch.attachment import eager_plans
from remat.torch.peak import measure_peak
from tests.client.torch_eager.networks import CASES
from tests.client.torch_exact.training import Case, batch_of, differences, seeded_model, train


@pytest.fixture
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that give the same bits each time: without them eager does not even equal itself."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_training_is_identical_and_within_the_budget(case: Case) -> None:
    case = replace(case, device="cuda")
    expected = train(case, seeded_model(case))
    model = remat.compile(seeded_model(case), mode="eager", budget="85%")
    assert differences(expected, train(case, model)) == []
    (plan,) = eager_plans(model)
    batch = batch_of(case, 0)
    model.zero_grad(set_to_none=True)
    measured = measure_peak(lambda: model(*batch).backward(), "cuda").peak_bytes_above_start
    assert plan.fixed_bytes + measured <= plan.budget_bytes
