"""Tiny configurations of architectures of `transformers`, with random weights: nothing is downloaded.

Batches are as trainers pass them: labels, and an attention mask of ones wherever the model takes one. Activations
outweigh weights, so that a budget of 60% of the peak means something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.architecture import Architecture, Batch

PACKAGE = "transformers"
VOCABULARY = 128
SENTENCES, LENGTH = 4, 64
IMAGES = 4
CLASSES = 4
_IMAGE_TOKEN = 120

_TEXT: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED: Mapping[str, Any] = {**_TEXT, "num_key_value_heads": 2}
_EXPERTS: Mapping[str, Any] = {**_GROUPED, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
_SEQ2SEQ: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
_VISION: Mapping[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_TOWER_TEXT: Mapping[str, Any] = {**_TEXT, "hidden_size": 48, "intermediate_size": 96, "max_position_embeddings": 64}


def _make(config: str, model: str, fields: Mapping[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**fields))
        return made

    return make


def _architecture(
    kind: str,
    batch: Callable[[], Batch],
    name: str,
    prefix: str,
    suffix: str,
    fields: Mapping[str, Any],
    *,
    config: str = "",
    **rest: Any,
) -> Architecture:
    """`prefix` and `suffix` are those of the classes: Llama and ForCausalLM."""
    model = _make(config or f"{prefix}Config", f"{prefix}{suffix}", fields)
    return Architecture(name=name, package=PACKAGE, kind=kind, model=model, batch=batch, **rest)


def _tokens(sentences: int = SENTENCES, length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (sentences, length))


def _language() -> Batch:
    tokens = _tokens()
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def _short_language() -> Batch:
    """For models that loop over the tokens: each token is a hundred ops."""
    tokens = _tokens(length=16)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def _translation() -> Batch:
    source = _tokens()
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": _tokens(length=32)}


def _images(size: int = 32, count: int = IMAGES) -> Tensor:
    return torch.randn(count, 3, size, size)


def _classified() -> Batch:
    return {"pixel_values": _images(), "labels": torch.randint(CLASSES, (IMAGES,))}


def _large_classified() -> Batch:
    return {"pixel_values": _images(64, 8), "labels": torch.randint(CLASSES, (8,))}


def _segmented() -> Batch:
    return {"pixel_values": _images(64), "labels": torch.randint(CLASSES, (IMAGES, 64, 64))}


def _detected() -> Batch:
    boxes = [torch.rand(2, 4) * 0.4 + 0.1 for _ in range(IMAGES)]
    labels = [{"class_labels": torch.randint(CLASSES, (2,)), "boxes": each} for each in boxes]
    return {"pixel_values": _images(64), "pixel_mask": torch.ones(IMAGES, 64, 64, dtype=torch.long), "labels": labels}


def _masks_found() -> Batch:
    masks = [(torch.rand(2, 64, 64) > 0.5).float() for _ in range(IMAGES)]
    classes = [torch.randint(CLASSES, (2,)) for _ in range(IMAGES)]
    return {"pixel_values": _images(64), "mask_labels": masks, "class_labels": classes}


def _paired() -> Batch:
    tokens = _tokens(IMAGES, 32)
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": _images(),
        "return_loss": True,
    }


def _captioned() -> Batch:
    tokens = torch.randint(3, _IMAGE_TOKEN, (IMAGES, 64))
    tokens[:, 1:17] = _IMAGE_TOKEN
    made = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}
    return {**made, "pixel_values": _images()}


def _captioned_in_patches() -> Batch:
    made = _captioned()
    return {
        **made,
        "pixel_values": torch.randn(IMAGES * 64, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 8, 8]] * IMAGES),
        "mm_token_type_ids": (made["input_ids"] == _IMAGE_TOKEN).int(),
    }


def _spoken() -> Batch:
    waves = torch.randn(2, 4000)
    return {
        "input_values": waves,
        "attention_mask": torch.ones_like(waves, dtype=torch.long),
        "labels": torch.randint(1, 30, (2, 5)),
    }


def _heard() -> Batch:
    return {"input_features": torch.randn(2, 80, 128), "labels": torch.randint(3, VOCABULARY, (2, 32))}


def _spectrograms() -> Batch:
    return {"input_values": torch.randn(4, 64, 32), "labels": torch.randint(CLASSES, (4,))}


def _videos() -> Batch:
    return {"pixel_values": torch.randn(2, 4, 3, 32, 32), "labels": torch.randint(CLASSES, (2,))}


def _series() -> Batch:
    return {"past_values": torch.randn(8, 64, 4), "future_values": torch.randn(8, 16, 4)}


def _several_choices() -> Batch:
    return {**_language(), "labels": torch.randint(CLASSES, (SENTENCES,))}


_DECODERS = [
    ("llama", "Llama", _GROUPED),
    ("mistral", "Mistral", {**_GROUPED, "sliding_window": 32}),
    ("qwen2", "Qwen2", _GROUPED),
    ("qwen3", "Qwen3", {**_GROUPED, "head_dim": 16}),
    ("gemma2", "Gemma2", {**_GROUPED, "head_dim": 16, "sliding_window": 32}),
    ("phi3", "Phi3", _GROUPED),
    ("falcon", "Falcon", _TEXT),
    ("mpt", "Mpt", {**_TEXT, "max_seq_len": 128}),
    ("opt", "OPT", {**_TEXT, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    ("bloom", "Bloom", {**_TEXT, "n_layer": 2, "n_head": 4}),
    ("gpt_neox", "GPTNeoX", _TEXT),
    ("gptj", "GPTJ", {**_TEXT, "rotary_dim": 8}),
    ("gpt_neo", "GPTNeo", {**_TEXT, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 16}),
    ("olmo2", "Olmo2", _GROUPED),
    ("starcoder2", "Starcoder2", _GROUPED),
    ("stablelm", "StableLm", _GROUPED),
    ("cohere", "Cohere", _GROUPED),
    ("granite", "Granite", _GROUPED),
    ("glm4", "Glm4", {**_GROUPED, "head_dim": 16}),
    ("smollm3", "SmolLM3", _GROUPED),
    ("biogpt", "BioGpt", _TEXT),
    ("xglm", "XGLM", {**_TEXT, "d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 4}),
]
_MIXTURES = [
    ("mixtral", "Mixtral", {**_EXPERTS, "num_local_experts": 4}),
    ("qwen2_moe", "Qwen2Moe", {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 64}),
    ("qwen3_moe", "Qwen3Moe", {**_EXPERTS, "num_experts": 4, "head_dim": 16}),
    ("olmoe", "Olmoe", {**_EXPERTS, "num_experts": 4}),
    ("gpt_oss", "GptOss", {**_EXPERTS, "num_local_experts": 4, "head_dim": 16, "sliding_window": 32}),
    ("granitemoe", "GraniteMoe", {**_EXPERTS, "num_local_experts": 4}),
    (
        "deepseek_v3",
        "DeepseekV3",
        {**_EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
         "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
         "num_key_value_heads": 4},
    ),
]  # fmt: skip
_STATE_SPACES = [
    ("mamba", "Mamba", {**_TEXT, "state_size": 8}),
    ("falcon_mamba", "FalconMamba", {**_TEXT, "state_size": 8}),
    ("mamba2", "Mamba2", {**_TEXT, "state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16}),
    ("rwkv", "Rwkv", {**_TEXT, "attention_hidden_size": 64, "context_length": 64}),
    (
        "jamba",
        "Jamba",
        {**_GROUPED, "num_experts": 2, "num_experts_per_tok": 1, "expert_layer_period": 2, "attn_layer_period": 2,
         "attn_layer_offset": 1, "expert_layer_offset": 1, "mamba_d_state": 8, "use_mamba_kernels": False},
    ),
    ("recurrent_gemma", "RecurrentGemma",
     {**_TEXT, "lru_width": 64, "attention_window_size": 32, "num_hidden_layers": 3, "num_key_value_heads": 1}),
]  # fmt: skip
_MASKED = [
    ("bert", "Bert", _TEXT),
    ("roberta", "Roberta", _TEXT),
    ("deberta_v2", "DebertaV2",
     {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}),
    ("electra", "Electra", {**_TEXT, "embedding_size": 64}),
    ("distilbert", "DistilBert", {**_TEXT, "hidden_dim": 128}),
    ("albert", "Albert", {**_TEXT, "embedding_size": 32}),
    ("modernbert", "ModernBert", {**_TEXT, "local_attention": 16, "cls_token_id": 1, "sep_token_id": 2}),
    ("mpnet", "MPNet", _TEXT),
    ("squeezebert", "SqueezeBert", {**_TEXT, "embedding_size": 64}),
    ("roformer", "RoFormer", {**_TEXT, "embedding_size": 64}),
    ("longformer", "Longformer", {**_TEXT, "attention_window": 16}),
    ("big_bird", "BigBird", {**_TEXT, "attention_type": "original_full"}),
    ("esm", "Esm", {**_TEXT, "mask_token_id": 3, "position_embedding_type": "rotary"}),
]  # fmt: skip
_ENCODER_DECODERS = [
    ("bart", "Bart", _SEQ2SEQ),
    ("mbart", "MBart", _SEQ2SEQ),
    ("pegasus", "Pegasus", _SEQ2SEQ),
    ("blenderbot", "Blenderbot", _SEQ2SEQ),
    ("m2m100", "M2M100", _SEQ2SEQ),
    (
        "t5",
        "T5",
        {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
         "decoder_start_token_id": 0},
    ),
    (
        "switch_transformers",
        "SwitchTransformers",
        {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
         "num_experts": 4, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
         "decoder_start_token_id": 0},
    ),
]  # fmt: skip
_STAGES: Mapping[str, Any] = {"hidden_sizes": [16, 32], "depths": [2, 3], "num_labels": CLASSES}
_WINDOWS: Mapping[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": CLASSES,
}
_CLASSIFIERS = [
    ("vit", "ViT", {**_VISION, "num_labels": CLASSES}),
    ("deit", "DeiT", {**_VISION, "num_labels": CLASSES}),
    ("beit", "Beit", {**_VISION, "num_labels": CLASSES}),
    ("dinov2", "Dinov2", {**_VISION, "num_labels": CLASSES}),
    ("swin", "Swin", _WINDOWS),
    ("swinv2", "Swinv2", _WINDOWS),
    ("vit_msn", "ViTMSN", {**_VISION, "num_labels": CLASSES}),
    ("focalnet", "FocalNet", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2],
                              "hidden_sizes": [16, 32], "focal_levels": [2, 2], "focal_windows": [3, 3],
                              "num_labels": CLASSES}),
]  # fmt: skip
_CONVOLUTIONAL = [
    ("convnext", "ConvNext", {**_STAGES, "num_stages": 2}),
    ("convnextv2", "ConvNextV2", {**_STAGES, "num_stages": 2}),
    ("resnet", "ResNet", {**_STAGES, "embedding_size": 16, "layer_type": "basic"}),
    ("regnet", "RegNet", {**_STAGES, "embedding_size": 16, "groups_width": 8}),
    ("poolformer", "PoolFormer",
     {"hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1], "num_labels": CLASSES}),
    ("mobilenet_v2", "MobileNetV2", {"image_size": 64, "depth_multiplier": 0.35, "num_labels": CLASSES}),
]  # fmt: skip


def catalogue() -> list[Architecture]:
    """Every architecture of `transformers` in the zoo."""
    return [*_text(), *_vision(), *_sound_and_series(), *_several_kinds()]


def _text() -> list[Architecture]:
    causal = "ForCausalLM"
    made = [
        _architecture("decoder", _language, name, prefix, causal, fields)
        for name, prefix, fields in _DECODERS
    ]  # fmt: skip
    made += [
        _architecture("decoder", _language, "gpt2", "GPT2", "LMHeadModel", _TEXT),
        _architecture(
            "decoder", _language, "gemma3", "Gemma3", causal,
            {**_GROUPED, "head_dim": 16, "sliding_window": 32}, config="Gemma3TextConfig",
        ),
    ]  # fmt: skip
    made += [_architecture("mixture", _language, name, prefix, causal, fields) for name, prefix, fields in _MIXTURES]
    made += [
        _architecture("state space", _short_language, name, prefix, causal, fields)
        for name, prefix, fields in _STATE_SPACES
    ]
    made += [
        _architecture("encoder", _language, name, prefix, "ForMaskedLM", fields) for name, prefix, fields in _MASKED
    ]
    made += [
        _architecture(
            "encoder", _several_choices, "xlnet", "XLNet", "ForSequenceClassification",
            {"vocab_size": VOCABULARY, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128,
             "num_labels": CLASSES, "pad_token_id": 0},
        ),
        _architecture("encoder-decoder", _translation, "marian", "Marian", "MTModel", _SEQ2SEQ),
    ]  # fmt: skip
    made += [
        _architecture("encoder-decoder", _translation, name, prefix, "ForConditionalGeneration", fields)
        for name, prefix, fields in _ENCODER_DECODERS
    ]
    return made


def _vision() -> list[Architecture]:
    image = "ForImageClassification"
    made = [_architecture("vision", _classified, name, prefix, image, fields) for name, prefix, fields in _CLASSIFIERS]
    made += [
        _architecture("vision", _large_classified, name, prefix, image, fields)
        for name, prefix, fields in _CONVOLUTIONAL
    ]  # fmt: skip
    made += [
        _architecture(
            "vision", _large_classified, "efficientnet", "EfficientNet", image,
            {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320,
             "num_labels": CLASSES},
        ),
        _architecture(
            "vision", _large_classified, "mobilevit", "MobileViT", image,
            {"image_size": 64, "hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
             "num_attention_heads": 4, "num_labels": CLASSES},
        ),
        _architecture(
            "vision", _segmented, "segformer", "Segformer", "ForSemanticSegmentation",
            {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16,
             "num_attention_heads": [1, 2, 2, 4], "num_labels": CLASSES},
        ),
        _architecture(
            "vision", _detected, "detr", "Detr", "ForObjectDetection",
            {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 8,
             "num_labels": CLASSES, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
             "backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16],
                                 "depths": [1, 1], "layer_type": "basic", "out_features": ["stage2"]}},
        ),
        _architecture(
            "vision", _masks_found, "mask2former", "Mask2Former", "ForUniversalSegmentation",
            {"hidden_dim": 32, "feature_size": 32, "mask_feature_size": 32, "encoder_layers": 1, "decoder_layers": 2,
             "num_attention_heads": 2, "encoder_feedforward_dim": 64, "dim_feedforward": 64, "num_queries": 8,
             "num_labels": CLASSES, "train_num_points": 64,
             "backbone_config": {"model_type": "swin", "image_size": 64, "embed_dim": 8, "depths": [1, 1, 1, 1],
                                 "num_heads": [1, 1, 2, 2], "window_size": 2,
                                 "out_features": ["stage1", "stage2", "stage3", "stage4"]}},
        ),
        _architecture(
            "video", _videos, "videomae", "VideoMAE", "ForVideoClassification",
            {**_VISION, "num_frames": 4, "tubelet_size": 2, "num_labels": CLASSES},
        ),
    ]  # fmt: skip
    return made


def _sound_and_series() -> list[Architecture]:
    speech = {
        "vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3),
        "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
        "mask_time_length": 4,
    }  # fmt: skip
    return [
        _architecture("audio", _spoken, "wav2vec2", "Wav2Vec2", "ForCTC", speech),
        _architecture("audio", _spoken, "hubert", "Hubert", "ForCTC", speech),
        _architecture(
            "audio", _heard, "whisper", "Whisper", "ForConditionalGeneration",
            {**_SEQ2SEQ, "num_mel_bins": 80, "max_source_positions": 64, "max_target_positions": 64},
        ),
        _architecture(
            "audio", _spectrograms, "ast", "AST", "ForAudioClassification",
            {**_VISION, "max_length": 64, "num_mel_bins": 32, "patch_size": 8, "frequency_stride": 4,
             "time_stride": 4, "num_labels": CLASSES},
        ),
        _architecture(
            "time series", _series, "patchtst", "PatchTST", "ForPrediction",
            {"num_input_channels": 4, "context_length": 64, "prediction_length": 16, "patch_length": 8,
             "patch_stride": 8, "d_model": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        ),
    ]  # fmt: skip


def _several_kinds() -> list[Architecture]:
    towers = {"text_config": dict(_TOWER_TEXT), "vision_config": dict(_VISION), "projection_dim": 32}
    llava = {
        "text_config": {**_GROUPED, "model_type": "llama"},
        "vision_config": {**_VISION, "patch_size": 8, "model_type": "clip_vision_model"},
        "image_token_index": _IMAGE_TOKEN,
        "vision_feature_layer": -1,
    }
    qwen_vl = {
        "text_config": {**_GROUPED, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
        "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4,
                          "mlp_ratio": 2},
        "image_token_id": _IMAGE_TOKEN, "video_token_id": 121, "vision_start_token_id": 122, "vision_end_token_id": 123,
    }  # fmt: skip
    return [
        _architecture("multimodal", _paired, "clip", "CLIP", "Model", towers),
        _architecture("multimodal", _paired, "siglip", "Siglip", "Model", towers),
        _architecture("multimodal", _paired, "chinese_clip", "ChineseCLIP", "Model", towers),
        _architecture("multimodal", _paired, "blip", "Blip", "Model", towers),
        _architecture(
            "multimodal", _captioned, "llava", "Llava", "ForConditionalGeneration", llava
        ),
        _architecture(
            "multimodal", _captioned_in_patches, "qwen2_vl", "Qwen2VL", "ForConditionalGeneration", qwen_vl
        ),
    ]  # fmt: skip
