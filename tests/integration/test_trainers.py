"""The loops that people don't write themselves: a planned model trains in them as it would without a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from lightning import pytorch as lightning
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import remat
from remat.torch.attachment import planned_graphs

Batch = dict[str, Tensor]
Loop = Callable[[nn.Module, Path], None]

pytestmark = pytest.mark.filterwarnings("ignore")


class Texts(Dataset[Batch]):
    """Eight texts of 24 tokens, the same in each run."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Batch:
        tokens = torch.randint(3, 64, (24,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attention_dropout=0.1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def with_adapters() -> nn.Module:
    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
    return get_peft_model(llama(), settings)


def trainer(**settings: Any) -> Loop:
    def loop(model: nn.Module, folder: Path) -> None:
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=2, num_train_epochs=1, report_to=[], use_cpu=True,
            save_strategy="no", logging_strategy="no", disable_tqdm=True, **settings,
        )  # fmt: skip
        transformers.Trainer(model=model, args=arguments, train_dataset=Texts()).train()

    return loop


def accelerated(model: nn.Module, _folder: Path) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Texts(), batch_size=2))
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


class Lit(lightning.LightningModule):
    """A model as Lightning takes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Batch, _index: int) -> Tensor:
        return self.model(**batch).loss  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def with_lightning(model: nn.Module, folder: Path) -> None:
    fabric = lightning.Trainer(
        max_epochs=1, accelerator="cpu", precision="bf16-mixed", gradient_clip_val=1.0, default_root_dir=folder,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    fabric.fit(Lit(model), DataLoader(Texts(), batch_size=2))


@pytest.mark.parametrize(
    ("make", "loop"),
    [
        (llama, trainer(gradient_accumulation_steps=2)),
        (llama, trainer(bf16=True)),
        (llama, trainer(bf16=True, gradient_checkpointing=True)),
        (with_adapters, trainer(bf16=True)),
        (llama, accelerated),
        (llama, with_lightning),
    ],
    ids=["Trainer", "Trainer in bf16", "Trainer with checkpointing", "PEFT", "Accelerate", "Lightning"],
)
def test_the_loop_trains_as_without_a_plan(make: Callable[[], nn.Module], loop: Loop, tmp_path: Path) -> None:
    trained = []
    for planned in (False, True):
        torch.manual_seed(0)
        model = make()
        untrained = {name: value.clone() for name, value in model.state_dict().items()}
        if planned:
            remat.compile(model, budget="75%", time_limit_s=5)
        loop(model, tmp_path)
        assert any(not torch.equal(value, untrained[name]) for name, value in model.state_dict().items())
        if planned:
            (record,) = planned_graphs(model)
            assert record.plan.overhead > 0
        trained.append(model.state_dict())
    assert trained[0].keys() == trained[1].keys()
    assert [name for name in trained[0] if not torch.equal(trained[0][name], trained[1][name])] == []
