"""Inductor mode: a compiled step within the budget that trains as the plain compiled one does, or a refusal.

Compiling is slow, so that one small model with dropout and BatchNorm is planned once and looked at from all sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.graph import GraphLowering

import remat
from remat.torch.attachment import inductor_plans
from remat.torch.both_ways import Outcome, run_once, run_unmeasured
from remat.torch.cost_cache import CACHE_DIR_VARIABLE
from remat.torch.inductor import planning
from remat.torch.inductor.difference import largest_difference
from remat.torch.inductor.layouts import AS_THEY_LIE, is_convolution, with_channels_last
from remat.torch.inductor.partitioners import Sighting, plain_backend, planned_backend, thrifty_backend, watched_backend
from remat.torch.inductor.plan import InductorPlan
from remat.torch.inductor.planning import plan_within
from remat.torch.inductor.rehearsal import without_kernels
from remat.torch.inductor.survey import Surveyed, survey
from remat.torch.inductor.trials import Bench
from remat.torch.joint_capture import compiled_call
from remat.torch.measure import measure
from remat.torch.signature import TensorSpec, decode
from remat.torch.step import Step
from remat_solver.budget import Budget
from remat_solver.errors import ApplyError, InfeasibleBudget, InvalidRequest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
"""Inductor's own, on its way."""

ROWS = 512
WIDTH = 32
NOISE = 1e-4
"""Of the norm; the same kernels in other company round differently by a hundredth of it."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread_and_costs_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_DIR_VARIABLE, str(tmp_path_factory.mktemp("costs")))
        yield
    torch.set_num_threads(threads)


def noisy_step(seed: int = 0) -> Step:
    """A chain whose backward needs the noise of its dropouts, and whose BatchNorm keeps statistics."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
    for _ in range(2):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.3)]
    return Step(nn.Sequential(*layers), (torch.randn(ROWS, WIDTH),), None, mean_square)


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


@dataclass(frozen=True)
class Both:
    """The same step compiled plainly and planned, with what both left behind."""

    step: Step
    plain: Outcome
    planned: Outcome
    plan: InductorPlan


@pytest.fixture(scope="module")
def both() -> Both:
    plain = noisy_step()
    call = compiled_call(plain.model, plain_backend(), plain.loss_fn)
    run_unmeasured(plain, call, None)
    torch.manual_seed(1)
    expected = run_once(plain, call, None)
    step = noisy_step()
    remat.compile(step.model, budget="80%", mode="inductor", loss_fn=mean_square)
    step = Step(step.model, step.args)
    torch.manual_seed(1)
    run_unmeasured(step, step.model, None)
    torch.manual_seed(1)
    outcome = run_once(step, step.model, None)
    (plan,) = inductor_plans(step.model)
    return Both(step=step, plain=expected, planned=outcome, plan=plan)


def test_it_trains_as_the_plain_compiled_step_does(both: Both) -> None:
    difference, where = largest_difference(both.planned, both.plain)
    assert difference < NOISE, where
    assert set(both.planned.buffers) == set(both.plain.buffers)
    assert both.plan.largest_difference < NOISE


def test_its_measured_peak_is_within_the_budget_and_below_the_plain_one(both: Both) -> None:
    measured = both.plan.fixed_bytes + both.planned.peak_bytes_above_start
    assert measured <= both.plan.budget_bytes < both.plan.plain_peak_bytes
    assert measured == both.plan.measured_peak_bytes
    assert both.plan.plain_peak_bytes == both.plan.fixed_bytes + both.plain.peak_bytes_above_start


def test_the_report_is_the_plan_and_says_that_it_is_not_exact(both: Both) -> None:
    assert remat.report(both.step.model) == both.plan
    assert both.plan.recomputed
    assert "not to the bit" in str(both.plan)


def test_statistics_are_updated_by_the_forward_alone(both: Both) -> None:
    model = both.step.model
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(*both.step.args)
    assert all(not torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    model.load_state_dict(before, strict=False)


def test_evaluation_runs_without_a_plan_and_removing_gives_the_model_back(both: Both) -> None:
    model = both.step.model.eval()
    with torch.no_grad():
        expected = model._call_impl(*both.step.args)
        with without_kernels():  # whether it gets there, not what it computes
            assert model(*both.step.args).shape == mean_square(expected).shape
    assert len(inductor_plans(model)) == 1
    call = model._compiled_call_impl
    remat.remove(model)
    assert torch.equal(model(*both.step.args), expected)
    model.train()._compiled_call_impl = call


def test_noise_is_not_drawn_anew_however_much_is_recomputed() -> None:
    """Every op that may be recomputed is, right before the backward: only the guard keeps the seeds out of it."""
    step = noisy_step(seed=3)
    sighting = Sighting()
    plain = compiled_call(step.model, watched_backend(sighting), step.loss_fn)
    run_unmeasured(step, plain, None)
    torch.manual_seed(7)
    expected = run_once(step, plain, None)
    joint = sighting.joint
    assert joint is not None
    ops = range(len(joint.graph))
    again = [op for op in range(joint.boundary) if joint.graph.ops[op].recomputable]
    assert any("inductor_random" in joint.graph.ops[op].name for op in again)
    schedule = (*ops[: joint.boundary + 1], *again, *ops[joint.boundary + 1 :])
    call = compiled_call(step.model, planned_backend(schedule, joint.graph.structure_hash), step.loss_fn)
    run_unmeasured(step, call, None)
    torch.manual_seed(7)
    difference, where = largest_difference(run_once(step, call, None), expected)
    assert difference < NOISE, where


def test_all_trials_draw_the_same_noise_whatever_was_drawn_since_the_survey() -> None:
    step = noisy_step()
    surveyed = survey(step, measure=measure)
    torch.manual_seed(5)
    planned = plan_within(surveyed, Budget(budget_fraction=0.8))
    assert planned.plan.largest_difference < NOISE


@pytest.fixture(scope="module")
def surveyed() -> Surveyed:
    return survey(noisy_step(), measure=measure)


def test_pytorchs_own_cut_is_taken_where_it_is_the_faster(surveyed: Surveyed, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, taken in (([1.0, 1.3, 1.2], "activation_memory_budget"), ([1.0, 1.1, 1.2], "a schedule of ours")):
        monkeypatch.setattr(Bench, "seconds", lambda _bench, calls, seconds=seconds: seconds[: len(calls)])
        plan = plan_within(surveyed, Budget(budget_fraction=0.9)).plan
        assert taken in str(plan)
        assert plan.measured_overhead == pytest.approx(min(seconds[1:]) - 1)
        assert plan.measured_peak_bytes <= plan.budget_bytes
        assert plan.largest_difference < NOISE


def test_a_schedule_as_fast_as_the_plain_step_is_taken_without_a_look_at_other_ways(
    surveyed: Surveyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "seconds", lambda _bench, calls: [1.0] * len(calls))
    monkeypatch.setattr(Surveyed, "thrifty_peak", None)
    assert plan_within(surveyed, Budget(budget_fraction=0.9)).plan.plan is not None


def test_what_was_rehearsed_is_not_lowered_again(surveyed: Surveyed, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[GraphLowering] = []
    run = GraphLowering.run
    monkeypatch.setattr(GraphLowering, "run", lambda graph, *args: (lowered.append(graph), run(graph, *args))[1])
    peak_bytes = surveyed.bench.rehearsed_peak(thrifty_backend(0.4))
    lowered.clear()
    trial = surveyed.bench.run(thrifty_backend(0.4))
    assert trial.peak_bytes == peak_bytes
    assert not lowered
    assert largest_difference(trial.outcome, surveyed.plain.outcome)[0] < NOISE


def test_where_only_one_way_fits_it_is_taken(surveyed: Surveyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MEMORY_BUDGETS", ())
    assert plan_within(surveyed, Budget(budget_fraction=0.8)).plan.plan is not None


def test_pytorchs_own_cut_draws_no_noise_anew(surveyed: Surveyed) -> None:
    trial = surveyed.bench.run(thrifty_backend(0.1))
    difference, where = largest_difference(trial.outcome, surveyed.plain.outcome)
    assert difference < NOISE, where


@pytest.fixture(scope="module")
def convolving() -> Surveyed:
    """A step of convolutions in float64, where rounding hides nothing."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels in (3, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3)]
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    return survey(Step(nn.Sequential(*layers).double(), (images,), None, mean_square), measure=measure)


def test_in_float64_a_planned_step_is_the_plain_one_to_nine_digits(
    convolving: Surveyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MEMORY_BUDGETS", ())
    plan = plan_within(convolving, Budget(budget_fraction=0.9)).plan
    assert plan.recomputed
    assert plan.largest_difference < 1e-9


def test_weights_are_copied_for_another_layout_only_where_that_saves_time(
    convolving: Surveyed, surveyed: Surveyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "run", lambda *_: convolving.plain)
    for seconds, wanted in (([1.0, 1.1], [{}, AS_THEY_LIE]), ([1.0, 0.9], [AS_THEY_LIE])):
        monkeypatch.setattr(Bench, "seconds", lambda _bench, _calls, seconds=seconds: seconds)
        assert [layout.settings for layout in replace(convolving).layouts] == wanted
    assert [layout.settings for layout in surveyed.layouts] == [{}]


def test_convolutions_are_measured_on_the_order_in_which_they_will_read(convolving: Surveyed) -> None:
    before = convolving.joint.graph
    after = with_channels_last(before)
    assert after.structure_hash == before.structure_hash
    for old, new in zip(before.ops, after.ops, strict=True):
        if not is_convolution(old):
            assert new.signature == old.signature
            continue
        _, args, _ = decode(new.signature)
        images = [spec for spec in args if isinstance(spec, TensorSpec) and len(spec.shape) == 4]
        assert images
        for spec in images:
            laid = torch.empty(spec.shape).to(memory_format=torch.channels_last)
            assert spec.stride == laid.stride(), old.name


def test_a_rehearsal_finds_the_same_peak_and_leaves_nothing_behind() -> None:
    step = noisy_step()
    with without_kernels():
        call = compiled_call(step.model, plain_backend(), step.loss_fn)
        run_unmeasured(step, call, None)
        rehearsed = run_once(step, call, None)
    real = compiled_call(step.model, plain_backend(), step.loss_fn)
    run_unmeasured(step, real, None)
    outcome = run_once(step, real, None)
    assert rehearsed.peak_bytes_above_start == outcome.peak_bytes_above_start
    assert float(outcome.outputs["output 0"]) > 0 == float(rehearsed.outputs["output 0"])


def test_a_budget_below_every_plan_is_refused_and_the_model_left_alone(both: Both) -> None:
    step = noisy_step()
    remat.compile(step.model, budget=both.plan.fixed_bytes, mode="inductor", loss_fn=mean_square)
    with pytest.raises(InfeasibleBudget, match="least peak measured"):
        step.model(*step.args)
    assert step.model._compiled_call_impl is None


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    model = remat.compile(nn.Linear(2, 2), budget="80%", mode="inductor")
    with pytest.raises(ApplyError, match=r"apt-get install g\+\+"):
        model(torch.ones(1, 2))


@pytest.mark.parametrize(
    "arguments",
    [{}, {"budget": "80%", "max_overhead": 0.1}, {"budget": "80%", "keep": "0"}, {"budget": "80%", "shapes": "bucket"}],
)
def test_what_the_mode_does_not_take_is_refused_at_once(arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="inductor mode"):
        remat.compile(nn.Linear(2, 2), mode="inductor", **arguments)


def test_a_plan_for_another_trace_is_refused() -> None:
    step = noisy_step()
    call = compiled_call(step.model, planned_backend((0,), "of something else"), step.loss_fn)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="another graph"):
        call(*step.args)
