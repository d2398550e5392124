"""No schedule changes a bit: losses, gradients, buffers, parameters and the random stream, over three steps."""

from __future__ import annotations

import pytest

from tests.client.torch_exact import schedules
from tests.client.torch_exact.networks import CASES
from tests.client.torch_exact.schedules import Scheduler
from tests.client.torch_exact.training import Case, differences, seeded_model, train, train_planned

SCHEDULERS: dict[str, Scheduler] = {
    "evict-all": schedules.evict_all,
    "random": schedules.evicting_at_random(0, 0.4),
}
MORE_SCHEDULERS: dict[str, Scheduler] = {
    "store-all": schedules.store_all,
    "sqrt": schedules.sqrt_segments,
    "rarely": schedules.evicting_at_random(1, 0.1),
    "often": schedules.evicting_at_random(2, 0.7),
}


def check(case: Case, schedulers: dict[str, Scheduler]) -> None:
    """Trains under every schedule and compares with eager."""
    expected = train(case, seeded_model(case))
    assert all(tensor.isfinite().all() for tensor in expected.values())
    recomputes = 0
    for name, scheduler in schedulers.items():
        seen, planned = train_planned(case, scheduler)
        assert differences(expected, seen) == [], name
        assert planned
        assert all(record.runs_built == record.runs_planned for record in planned)
        recomputes += sum(record.plan.recompute_count for record in planned)
    assert recomputes > 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_schedule_trains_like_eager(case: Case) -> None:
    check(case, SCHEDULERS)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_more_schedules_train_like_eager(case: Case) -> None:
    check(case, MORE_SCHEDULERS)
