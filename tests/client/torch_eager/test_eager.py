"""Eager mode: any model trains bit for bit as without it, within the budget, or is refused."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

import remat
from remat.torch import batch_norm
from remat.torch.attachment import eager_plans
from remat.torch.both_ways import run_once
from remat.torch.eager import saving
from remat.torch.eager.compile import EagerCall, Planned
from remat.torch.eager.draws import highest_peak
from remat.torch.eager.plan import EagerPlan
from remat.torch.eager.region_call import RegionCall
from remat.torch.eager.stand_ins import installed
from remat.torch.eager.survey import _Recorder
from remat.torch.peak import measure_peak
from remat.torch.shaped_call import shape_key
from remat.torch.step import Step
from remat_solver.errors import ApplyError, GraphBreak, InfeasibleBudget, InvalidRequest, VerificationFailed
from tests.client.torch_eager.networks import (
    CASES,
    CONVOLUTIONS,
    COUNTING,
    DROPOUT,
    LIBRARY,
    NOISY,
    WIDTH,
    Accounting,
    Block,
    Caching,
    Chain,
    Differentiating,
    Forgetful,
    Keeping,
    Library,
    Skipping,
    Sly,
    Stubborn,
    rows,
)
from tests.client.torch_exact.training import Case, batch_of, differences, seeded_model, train


def planned(case: Case, budget: str | int) -> tuple[nn.Module, EagerPlan]:
    """The case's model under a budget, and the plan for its first batch."""
    model = remat.compile(seeded_model(case), mode="eager", budget=budget)
    torch.manual_seed(0)
    model(*batch_of(case, 0))
    (plan,) = eager_plans(model)
    return model, plan


def least_budget(case: Case) -> int:
    """The least that eager mode itself says it can do."""
    with pytest.raises(InfeasibleBudget) as caught:
        planned(case, 1)
    least: int = caught.value.fields["known_feasible_bytes"]
    return least


def is_as_it_was(model: nn.Module) -> bool:
    return all(module._compiled_call_impl is None for module in model.modules())


def peak_of_a_step(case: Case, model: nn.Module, plan: EagerPlan) -> int:
    batch = batch_of(case, 0)
    model.zero_grad(set_to_none=True)
    return plan.fixed_bytes + measure_peak(lambda: model(*batch).backward(), "cpu").peak_bytes_above_start


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_training_is_identical_and_within_the_budget(case: Case) -> None:
    expected = train(case, seeded_model(case))
    for budget in ("85%", least_budget(case)):
        model = remat.compile(seeded_model(case), mode="eager", budget=budget)
        torch.manual_seed(0)
        assert differences(expected, train(case, model)) == []
        (plan,) = eager_plans(model)
        assert plan.recompute_ns > 0
        assert plan.measured_peak_bytes <= plan.budget_bytes < plan.store_all_peak_bytes
        assert peak_of_a_step(case, model, plan) <= plan.budget_bytes


def test_a_forward_that_takes_a_gradient_trains_identically() -> None:
    """Little can be saved there, as that gradient keeps what it is made of."""
    case = Case(name="", model=Differentiating, batch=lambda _: (rows(),))
    model = remat.compile(seeded_model(case), mode="eager", budget="100%")
    assert differences(train(case, seeded_model(case)), train(case, model)) == []


def test_what_is_made_where_something_was_freed_is_not_taken_for_an_input() -> None:
    """A constant is freed after use, and the next result may lie where it lay."""
    recorder = _Recorder(device=torch.device("cpu"))
    with create_selective_checkpoint_contexts(recorder.note)[0]:
        made = torch.ones(8)
        for _ in range(20):
            made = made.add(torch.tensor(1.0)).clone()
            made[:4].mul_(2)
    assert recorder.finish(made).obstacle == ""


def test_a_model_that_breaks_the_graph_is_told_of_eager_mode() -> None:
    model = remat.compile(seeded_model(LIBRARY), budget="80%")
    with pytest.raises(GraphBreak, match='mode="eager"'):
        model(*batch_of(LIBRARY, 0))


def test_saving_an_earlier_random_result_without_the_later_ones_would_change_gradients() -> None:
    """Why the solver takes random ops from the end only: the second draw would get the first one's numbers."""
    _, plan = planned(NOISY, "85%")
    draw = "aten.rand_like.default"
    expected = train(NOISY, seeded_model(NOISY), steps=1)
    for saved, is_equal in (({(draw, 0)}, False), ({(draw, 1)}, True), ({(draw, 0), (draw, 1)}, True)):
        found = train(NOISY, with_regions(NOISY, plan, saved=frozenset(saved)), steps=1)
        assert (differences(expected, found) == []) is is_equal


def test_without_the_rule_for_statistics_they_would_be_updated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(CONVOLUTIONS, seeded_model(CONVOLUTIONS), steps=1)
    _, plan = planned(CONVOLUTIONS, "85%")

    def trained(**changes: object) -> list[str]:
        model = with_regions(CONVOLUTIONS, plan, saved=frozenset(), **changes)
        return differences(expected, train(CONVOLUTIONS, model, steps=1))

    assert trained() == []
    monkeypatch.setattr(batch_norm, "without_statistics", lambda _op, args: args)
    assert {name.rsplit(".", 1)[-1] for name in trained()} >= {"running_mean", "running_var"}
    monkeypatch.setattr(saving, "is_mutable", lambda _op: False)
    assert any("num_batches_tracked" in name for name in trained())


def with_regions(case: Case, plan: EagerPlan, **changes: object) -> nn.Module:
    """The case's model, every region recomputed with the given changes to its plan."""
    model = remat.compile(seeded_model(case), mode="eager", budget=plan.budget_bytes)
    base = next(region for region in plan.regions.values() if region is not None)
    region = dataclasses.replace(base, **changes)  # type: ignore[arg-type]
    call = model._compiled_call_impl
    assert isinstance(call, EagerCall)
    forced = dataclasses.replace(plan, regions=dict.fromkeys(plan.regions, region))
    key = shape_key(model, batch_of(case, 0), {})
    call.planned[key] = Planned(plan=forced, call=partial(call._run_by, forced))
    call.calls = installed({path: model.get_submodule(path) for path in plan.regions})
    return model


def test_a_saved_result_that_does_not_turn_up_is_refused() -> None:
    _, plan = planned(DROPOUT, "85%")
    model = with_regions(DROPOUT, plan, saved=frozenset({("aten.addmm.default", 7)}))
    with pytest.raises(ApplyError, match=r"did not run aten.addmm.default a 8. time"):
        model(*batch_of(DROPOUT, 0))


class ChangesLater(Chain):
    """Changes a block's input in place after the block ran: no gradient needs it, but a recompute would read it."""

    def forward(self, x: Tensor) -> Tensor:
        copied = x + 0
        y = self.blocks[1](self.blocks[0](x=copied))
        with torch.no_grad():
            copied.add_(1)
        return y.square().mean()


def test_an_input_that_is_changed_before_the_recompute_is_refused() -> None:
    case = Case(name="", model=lambda: ChangesLater(Block(), Block()), batch=lambda _: (rows(),))
    model = remat.compile(seeded_model(case), mode="eager", budget="70%")
    with pytest.raises(ApplyError, match=r"that blocks.0.* read was changed in place after it ran"):
        model(*batch_of(case, 0))
    assert is_as_it_was(model)


def test_a_region_that_can_not_run_twice_is_left_alone_and_says_why() -> None:
    _, plan = planned(COUNTING, "85%")
    (path,) = [path for path in plan.regions if path in plan.left_alone]
    assert path == "blocks.1"
    assert plan.regions[path] is None
    assert "lives outside it" in plan.left_alone[path]
    assert plan.left_alone[path] in " ".join(str(plan).split())


class Remembering(Chain):
    """Hands one cache to all its blocks."""

    def forward(self, x: Tensor) -> Tensor:
        cache: set[Tensor] = set()
        for block in self.blocks:
            x = block(x, cache) if isinstance(block, Caching) else block(x)
        return x.square().mean()


@pytest.mark.parametrize("block", [Forgetful, Caching])
def test_a_region_that_does_something_else_the_second_time_is_left_alone(block: type[nn.Module]) -> None:
    case = Case(name="", model=lambda: Remembering(Block(), Block(), Block(), block()), batch=lambda _: (rows(),))
    model, plan = planned(case, "85%")
    (path,) = [path for path in plan.regions if path in plan.left_alone]
    assert path == "blocks.3"
    assert "a second time" in plan.left_alone[path]
    if block is Caching:  # the other remembers in itself how often it was planned
        assert differences(train(case, seeded_model(case)), train(case, seeded_copy(model, case))) == []


def seeded_copy(model: nn.Module, case: Case) -> nn.Module:
    """The planned model with the case's weights anew."""
    model.load_state_dict(seeded_model(case).state_dict())
    return model


def test_a_model_of_which_nothing_can_run_twice_is_refused_with_the_reason() -> None:
    case = Case(name="", model=lambda: Chain(Stubborn(), Stubborn()), batch=lambda _: (rows(),))
    model = remat.compile(seeded_model(case), mode="eager", budget="80%")
    with pytest.raises(ApplyError, match=r"can recompute no module.*blocks.0, for one: .*second time"):
        model(*batch_of(case, 0))


def test_verification_sees_what_no_rule_can_see() -> None:
    case = Case(name="", model=lambda: Chain(Sly(), Sly(), Sly()), batch=lambda _: (rows(),))
    model = remat.compile(seeded_model(case), mode="eager", budget="80%", verify=True)
    with pytest.raises(VerificationFailed, match="differs from the unmodified one"):
        model(*batch_of(case, 0))
    assert is_as_it_was(model)


def test_verification_passes_where_nothing_differs() -> None:
    model = remat.compile(seeded_model(DROPOUT), mode="eager", budget="85%", verify=True)
    assert differences(train(DROPOUT, seeded_model(DROPOUT)), train(DROPOUT, model)) == []


def test_a_budget_that_can_not_be_met_leaves_the_model_as_it_was() -> None:
    model = remat.compile(seeded_model(CONVOLUTIONS), mode="eager", budget="1KB")
    before = [buffer.clone() for buffer in model.buffers()]
    batch = batch_of(CONVOLUTIONS, 0)
    state = torch.get_rng_state()
    with pytest.raises(InfeasibleBudget, match="with every region recomputed"):
        model(*batch)
    assert is_as_it_was(model)
    assert all(map(torch.equal, before, model.buffers()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_planning_moves_neither_the_random_state_nor_buffers() -> None:
    model = remat.compile(seeded_model(CONVOLUTIONS), mode="eager", budget="85%")
    batch = batch_of(CONVOLUTIONS, 0)
    state = torch.get_rng_state()
    model(*batch)
    assert torch.equal(state, torch.get_rng_state())  # this model draws no numbers of its own
    assert int(model.get_buffer("blocks.0.body.1.num_batches_tracked")) == 1


def test_every_input_shape_has_its_plan_and_evaluation_needs_none() -> None:
    model, plain = remat.compile(seeded_model(DROPOUT), mode="eager", budget="85%"), seeded_model(DROPOUT)
    with torch.no_grad():
        model(rows())
    assert eager_plans(model) == ()
    for count in (64, 256, 64):
        batch = torch.randn(count, WIDTH)
        torch.manual_seed(0)
        expected = plain(batch)
        torch.manual_seed(0)
        assert torch.equal(model(batch), expected)
    assert len(eager_plans(model)) == 2


def test_a_shape_that_does_not_fit_takes_nothing_from_those_that_do() -> None:
    _, plan = planned(DROPOUT, "85%")
    model = remat.compile(seeded_model(DROPOUT), mode="eager", budget=plan.budget_bytes)
    model(*batch_of(DROPOUT, 0))
    with pytest.raises(InfeasibleBudget):
        model(torch.randn(10_000, WIDTH))
    recomputed = [path for path, region in eager_plans(model)[0].regions.items() if region is not None]
    assert recomputed
    assert all(isinstance(model.get_submodule(path)._compiled_call_impl, RegionCall) for path in recomputed)
    assert differences(train(DROPOUT, seeded_model(DROPOUT)), train(DROPOUT, model)) == []


def test_a_plan_for_training_is_none_for_evaluation_mode() -> None:
    model, plain = remat.compile(seeded_model(DROPOUT), mode="eager", budget="85%"), seeded_model(DROPOUT)
    model(*batch_of(DROPOUT, 0))
    model.eval()
    plain.eval()
    batch = batch_of(DROPOUT, 0)
    assert torch.equal(model(*batch), plain(*batch))  # no dropout runs whose noise a plan would save
    assert len(eager_plans(model)) == 2


def test_the_plan_comes_off_again_and_state_dicts_never_knew() -> None:
    model, _ = planned(DROPOUT, "85%")
    assert list(model.state_dict()) == list(seeded_model(DROPOUT).state_dict())
    assert "recomputed" in str(remat.report(model))
    remat.remove(model)
    assert is_as_it_was(model)


def test_a_loss_function_is_planned_with_the_model() -> None:
    case = Case(name="", model=lambda: nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 400)), batch=DROPOUT.batch)
    model = remat.compile(seeded_model(case), mode="eager", budget="90%", loss_fn=lambda out: out.exp().sum())
    loss = model(*batch_of(case, 0))
    assert loss.shape == ()
    loss.backward()


@pytest.mark.parametrize(
    "given",
    [{"budget": "80%", "endpoint": "http://solver"}, {"max_overhead": 0.1}, {"budget": "80%", "keep": "blocks.0"}, {}],
)
def test_what_eager_mode_does_not_take(given: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="eager mode"):
        remat.compile(seeded_model(DROPOUT), mode="eager", **given)  # type: ignore[arg-type]


def test_an_unknown_mode() -> None:
    with pytest.raises(InvalidRequest, match="mode 'fast' is unknown"):
        remat.compile(seeded_model(DROPOUT), mode="fast", budget="80%")  # type: ignore[arg-type]


def test_a_model_without_blocks_is_told_so() -> None:
    model = remat.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), mode="eager", budget="90%")
    with pytest.raises(ApplyError, match="found no module to recompute"):
        model(torch.randn(3, 4))


def test_where_modules_are_skipped_by_chance_the_step_with_all_of_them_is_planned() -> None:
    case = Case(name="", model=lambda: Skipping(0.4), batch=lambda _: (rows(),))
    model = remat.compile(seeded_model(case), mode="eager", budget="85%")
    torch.manual_seed(0)
    batch = batch_of(case, 0)
    model(*batch)
    (plan,) = eager_plans(model)
    assert len(plan.regions) == 4
    peaks = []
    for seed in range(1, 12):
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        measured = measure_peak(lambda: model(*batch).backward(), "cpu")
        peaks.append(plan.fixed_bytes + measured.peak_bytes_above_start)
    assert min(peaks) < max(peaks) <= plan.budget_bytes


def test_where_modules_are_always_skipped_in_turn_nothing_is_promised() -> None:
    case = Case(name="", model=lambda: Skipping(0.7), batch=lambda _: (rows(),))
    model = remat.compile(seeded_model(case), mode="eager", budget="90%")
    torch.manual_seed(0)
    with pytest.raises(ApplyError, match=r"by chance \(blocks.\d"):
        model(*batch_of(case, 0))
    assert is_as_it_was(model)


def test_what_the_model_keeps_for_the_next_step_is_within_the_budget_too() -> None:
    case = Case(name="", model=Keeping, batch=lambda _: (rows(),))
    model, plan = planned(case, "70%")
    assert plan.kept_bytes == rows().nbytes
    peaks = [peak_of_a_step(case, model, plan) for _ in range(2)]  # in the second it is seen that the first's is freed
    assert plan.kept_bytes + peaks[1] <= plan.budget_bytes


def test_the_history_of_what_is_kept_is_not() -> None:
    """A backward empties it."""
    case = Case(name="", model=lambda: Chain(*(Accounting() for _ in range(3))), batch=lambda _: (rows(),))
    model, plan = planned(case, "100%")
    assert plan.kept_bytes == sum(block.share.nbytes for block in model.blocks)  # type: ignore[union-attr]


def test_peaks_that_differ_from_draw_to_draw_leave_room_for_more() -> None:
    assert highest_peak([100, 100, 100]) == 100
    assert highest_peak([100, 110, 105]) == 120


def test_a_trial_differentiates_the_loss_that_an_output_brings_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = Library(1)
    step = Step(model, (), {"tokens": torch.randint(50, (2, 8)), "labels": torch.randint(50, (2, 8))})
    torch.manual_seed(0)
    gradients = run_once(step, model, None).gradients
    torch.manual_seed(0)
    model(**step.kwargs or {}).loss.backward()
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(gradients[name], p.grad) for name, p in model.named_parameters() if p.grad is not None)
