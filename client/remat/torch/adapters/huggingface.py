"""Models of Hugging Face's `transformers`, alone or inside another module.

* Some models install hooks, or find out what kind of labels they have, in their first call. That is done before it.
* A mask of ones is dropped by the library in eager mode, which looks at the values, but not while it is traced:
  attention then runs another kernel, and results differ in the last bits. It is dropped here, as eager mode does.
* Without a mask, and without a cache, the library looks for several texts in one row of positions, again by their
  values. While it is traced it makes a mask in any case; here it does where eager mode would.
* Mamba-like models run a parallel scan when they are traced, and a loop in eager mode. The loop is traced here.
* Decoders fill a cache of keys and values even in training, unless `use_cache` says no: an attention that runs again
  would find it filled. In eager mode it says no, as with the library's own gradient checkpointing.
* Some models skip layers at random (`layerdrop`). Eager mode's trial steps run them all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from remat.torch.adapters.adapter import Adapter, Arguments

_MASKS = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask")
_SCAN = "use_associative_scan"
_FIND_TEXTS = "find_packed_sequence_indices"
_CHANCES = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
_CLASSIFIER_LOSSES = ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification",
                      "ForAudioClassification")  # fmt: skip


def pretrained_models_in(model: nn.Module) -> list[Any]:
    """The models of `transformers` that `model` is or holds, outermost first. The library is not imported for it."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        return []
    return [module for module in model.modules() if isinstance(module, library.PreTrainedModel)]


class HuggingFaceAdapter(Adapter):
    """Hints for a model that is, or holds, models of `transformers`."""

    def __init__(self, model: nn.Module, pretrained: list[Any]) -> None:
        self._model = pretrained[0]
        self._is_outermost = _without_wrappers(model) is pretrained[0]
        self._scanning = [module for module in model.modules() if getattr(module, _SCAN, False) is True]
        self._configs = list({id(each.config): each.config for each in pretrained}.values())
        for each in pretrained:
            _install_hooks(each)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if not self._is_outermost:
            return args, kwargs  # whose arguments they are is not known
        _settle_problem_type(self._model, kwargs.get("labels"))
        if getattr(self._model, "main_input_name", "") != "input_ids":
            return args, kwargs
        ones = [name for name in _MASKS if _is_all_ones(kwargs.get(name))]
        return args, {**kwargs, **dict.fromkeys(ones)}

    @contextmanager
    def calling(self, kwargs: Mapping[str, Any]) -> Iterator[None]:
        with _set(self._scanning, {_SCAN: False}), _looking_for_texts(_may_hold_several_texts(kwargs)):
            yield

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        with _set(self._configs, {"use_cache": False}):
            yield

    @contextmanager
    def skipping_nothing(self) -> Iterator[None]:
        with _set([*self._configs, *self._model.modules()], dict.fromkeys(_CHANCES, 0.0)):
            yield


@contextmanager
def _set(owners: Iterable[Any], values: Mapping[str, Any]) -> Iterator[None]:
    """Sets attributes, of those owners that have them with a value that counts as true, until the block ends."""
    former = [(owner, name, getattr(owner, name, None)) for owner in owners for name in values]
    former = [(owner, name, value) for owner, name, value in former if isinstance(value, (bool, float)) and value]
    for owner, name, _ in former:
        setattr(owner, name, values[name])
    try:
        yield
    finally:
        for owner, name, value in former:
            setattr(owner, name, value)


@contextmanager
def _looking_for_texts(looks: bool) -> Iterator[None]:
    """Unless it `looks`, the library finds one text in each row inside the block."""
    library: Any = sys.modules.get("transformers.masking_utils")
    former = getattr(library, _FIND_TEXTS, None)
    if looks or former is None:
        yield
        return
    setattr(library, _FIND_TEXTS, _one_text)
    try:
        yield
    finally:
        setattr(library, _FIND_TEXTS, former)


def _one_text(position_ids: Tensor) -> None:
    """What the library's search returns where each row of positions is one text."""


def _may_hold_several_texts(kwargs: Mapping[str, Any]) -> bool:
    """Whether no mask was given, but positions (models make their own without a gap) that don't rise one by one."""
    positions = kwargs.get("position_ids")
    if kwargs.get("attention_mask") is not None or not isinstance(positions, Tensor):
        return False
    return bool((positions.diff(dim=-1) != 1).any())


def _without_wrappers(model: Any) -> Any:
    """The model inside of what hands its arguments on: data parallelism, `peft`."""
    peft = sys.modules.get("peft")
    while isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


def _install_hooks(model: Any) -> None:
    """The hooks that record hidden states, which a model otherwise installs in its first call, under a lock."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    install = getattr(capturing, "maybe_install_capturing_hooks", None)
    if install is not None:
        install(model)


def _settle_problem_type(model: Any, labels: object) -> None:
    """What the loss of a classifier writes into the configuration in its first call, by the same rule."""
    config: Any = getattr(model, "config", None)
    if not isinstance(labels, Tensor) or getattr(config, "problem_type", "") is not None:
        return
    if not type(model).__name__.endswith(_CLASSIFIER_LOSSES):
        return
    if config.num_labels == 1:
        config.problem_type = "regression"
    elif labels.dtype in (torch.long, torch.int):
        config.problem_type = "single_label_classification"
    else:
        config.problem_type = "multi_label_classification"


def _is_all_ones(mask: object) -> bool:
    return isinstance(mask, Tensor) and mask.dim() == 2 and not mask.requires_grad and bool(mask.eq(1).all())
