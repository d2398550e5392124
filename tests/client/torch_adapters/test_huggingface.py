"""Models of `transformers`: with the adapter they train like eager, in one graph; without it they don't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

import remat
from remat.torch import joint_capture
from remat.torch.adapters import Adapter, adapter_for, huggingface
from remat.torch.attachment import attach, eager_plans, planned_graphs
from remat.torch.backend import Backend
from remat_solver.errors import GraphBreak
from tests.client.torch_exact import schedules

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a .functools.lru_cache")

TEXT: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
Batch = dict[str, Tensor]


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT, num_key_value_heads=1))


def llama_as_trainers_run_it() -> nn.Module:
    """In half precision, and without a cache: the kernel for a mask groups queries another way than that without."""
    model = llama().bfloat16()
    model.config.use_cache = False
    return model


def mamba() -> nn.Module:
    return transformers.MambaForCausalLM(transformers.MambaConfig(**TEXT, state_size=4))


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", num_labels=3)
    return transformers.ResNetForImageClassification(config)


def segformer() -> nn.Module:
    config = transformers.SegformerConfig(
        num_encoder_blocks=1, depths=[1], sr_ratios=[1], hidden_sizes=[8], patch_sizes=[7], strides=[4],
        num_attention_heads=[1], mlp_ratios=[2], decoder_hidden_size=8, num_labels=3,
    )  # fmt: skip
    return transformers.SegformerForSemanticSegmentation(config)


def sentences(mask: Tensor | None = None) -> Batch:
    tokens = torch.randint(3, 32, (2, 8))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens) if mask is None else mask, "labels": tokens}


def padded() -> Batch:
    return sentences(torch.tensor([[0, 0, 0] + [1] * 5, [1] * 8]))


def unmasked(positions: Tensor | None = None) -> Batch:
    tokens = torch.randint(3, 32, (2, 8))
    batch = {"input_ids": tokens, "labels": tokens}
    return batch if positions is None else batch | {"position_ids": positions}


def packed() -> Batch:
    """Two texts in each row."""
    return unmasked(torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]]).repeat(2, 1))


def positioned() -> Batch:
    return unmasked(torch.arange(8).repeat(2, 1))


def packed_with_a_mask() -> Batch:
    """The library minds the mask, and takes each row for one text."""
    batch = packed()
    return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def images() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}


def maps() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.randint(3, (2, 16, 16))}


def trained(make: Callable[[], nn.Module], batch_of: Callable[[], Batch], *, planned: bool) -> tuple[list[Tensor], int]:
    """Losses and gradients of two steps, and how many graphs were planned."""
    torch.manual_seed(0)
    model = make().train()
    if planned:
        backend = Backend(model=model, planner=schedules.planner_of(schedules.evict_all), measure=lambda graph: graph)
        attach(model, backend, loss_fn=lambda output: output.loss)
    seen = []
    for _ in range(2):
        model.zero_grad()
        loss = model(**batch_of())
        loss = loss if planned else loss.loss
        loss.backward()
        seen += [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
    return seen, len(planned_graphs(model))


def outcome(make: Callable[[], nn.Module], batch_of: Callable[[], Batch]) -> tuple[bool, int]:
    """Whether a plan trains the model like eager, and how many graphs it took."""
    eager, _ = trained(make, batch_of, planned=False)
    ours, graphs = trained(make, batch_of, planned=True)
    assert len(eager) == len(ours)
    return all(torch.equal(one, other) for one, other in zip(eager, ours, strict=True)), graphs


@pytest.mark.parametrize(
    ("make", "batch_of"),
    [(llama, sentences), (llama, padded), (mamba, sentences), (resnet, images), (segformer, maps)],
    ids=["mask of ones", "padded", "scan", "classifier", "hooks"],
)
def test_it_trains_like_eager_in_one_graph(make: Callable[[], nn.Module], batch_of: Callable[[], Batch]) -> None:
    assert outcome(make, batch_of) == (True, 1)


@pytest.mark.parametrize(
    "batch_of", [unmasked, sentences, padded, positioned, packed, packed_with_a_mask], ids=lambda f: f.__name__
)
def test_without_a_cache_it_looks_for_texts_as_eager_does(batch_of: Callable[[], Batch]) -> None:
    assert outcome(llama_as_trainers_run_it, batch_of) == (True, 1)


def test_rows_of_one_text_and_of_several_may_take_turns() -> None:
    def in_turns() -> Callable[[], Batch]:
        makers = iter((positioned, packed))
        return lambda: next(makers)()

    eager, _ = trained(llama_as_trainers_run_it, in_turns(), planned=False)
    ours, graphs = trained(llama_as_trainers_run_it, in_turns(), planned=True)
    assert graphs == 2
    assert all(torch.equal(one, other) for one, other in zip(eager, ours, strict=True))


@pytest.mark.parametrize("batch_of", [unmasked, sentences, positioned, packed_with_a_mask], ids=lambda f: f.__name__)
def test_looking_for_texts_while_tracing_changes_results(
    batch_of: Callable[[], Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "_may_hold_several_texts", lambda _: True)
    assert outcome(llama_as_trainers_run_it, batch_of) == (False, 1)


@pytest.mark.parametrize(
    ("make", "batch_of", "expected"),
    [(llama, sentences, (False, 1)), (mamba, sentences, (False, 1)), (resnet, images, (True, 2))],
    ids=["mask of ones", "scan", "classifier"],
)
def test_without_the_adapter_it_does_not(
    make: Callable[[], nn.Module],
    batch_of: Callable[[], Batch],
    expected: tuple[bool, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joint_capture, "adapter_for", lambda _model: Adapter())
    assert outcome(make, batch_of) == expected


def test_without_its_hooks_a_model_breaks_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_capture, "adapter_for", lambda _model: Adapter())
    with pytest.raises(GraphBreak):
        trained(segformer, maps, planned=True)


def test_only_masks_of_ones_are_dropped_and_settings_are_put_back() -> None:
    model = mamba()
    adapter = adapter_for(model)
    assert adapter.prepare((), sentences())[1]["attention_mask"] is None
    given = padded()
    assert adapter.prepare((), given)[1]["attention_mask"] is given["attention_mask"]
    scanning = [module for module in model.modules() if getattr(module, "use_associative_scan", False)]
    with adapter.calling({}):
        assert not any(module.use_associative_scan for module in scanning)
    assert scanning
    assert all(module.use_associative_scan for module in scanning)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # which peft asks for
def test_models_inside_wrappers_get_the_same_hints() -> None:
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(llama(), settings)
    assert adapter_for(wrapped).prepare((), sentences())[1]["attention_mask"] is None
    own = nn.ModuleList([llama()])  # which may do anything with its arguments
    assert adapter_for(own).prepare((), sentences())[1]["attention_mask"] is not None


def wav2vec2() -> nn.Module:
    config = transformers.Wav2Vec2Config(
        **TEXT, conv_dim=(8,), conv_stride=(5,), conv_kernel=(10,), num_feat_extract_layers=1,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, layerdrop=0.5,
    )  # fmt: skip
    return transformers.Wav2Vec2ForCTC(config)


def test_in_eager_mode_attention_fills_no_cache_and_can_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    batch = sentences()
    model = remat.compile(llama(), mode="eager", budget="95%", loss_fn=lambda output: output.loss)
    model(**batch).backward()
    assert eager_plans(model)[0].left_alone == {}
    assert model.config.use_cache is True
    monkeypatch.setattr(type(adapter_for(model)), "recomputing", Adapter.recomputing)
    remat.compile(model, mode="eager", budget="100%", loss_fn=lambda output: output.loss)
    model(**batch)
    assert "use_cache" in str(eager_plans(model)[0].left_alone)


def test_layers_that_are_skipped_at_random_all_run_in_trials() -> None:
    model = wav2vec2()
    adapter = adapter_for(model)
    with adapter.skipping_nothing():
        assert model.config.layerdrop == 0
    assert model.config.layerdrop == 0.5


class LossAlone(nn.Module):
    """Drops the logits, beside which a step would hold their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = llama()

    def forward(self, **batch: Tensor) -> transformers.modeling_outputs.CausalLMOutput:
        return transformers.modeling_outputs.CausalLMOutput(loss=self.inner(**batch).loss)


def test_an_output_that_holds_the_loss_alone_needs_no_loss_function() -> None:
    torch.manual_seed(0)
    batch = padded()
    model = LossAlone().train()
    eager = model(**batch).loss
    eager.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    attach(model, Backend(model=model, planner=schedules.planner_of(schedules.evict_all), measure=lambda graph: graph))
    planned = model(**batch)
    planned.loss.backward()
    assert isinstance(planned, transformers.modeling_outputs.CausalLMOutput)
    assert planned.to_tuple() == (planned.loss,)
    assert torch.equal(planned.loss, eager)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
    (record,) = planned_graphs(model)
    assert not record.loss_is_outside


def test_other_models_have_no_adapter() -> None:
    assert type(adapter_for(nn.Linear(2, 2))) is Adapter
