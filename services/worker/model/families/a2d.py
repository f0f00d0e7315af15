"""A2D: Qwen's models, trained further as diffusion models. They attend in both directions, or are block-causal if the
file has a `block_size`.

Source: ZHZisZZ/dllm, whose files train and convert them.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import (
    QWEN_LAYER_NAMES,
    QWEN_NORM_NAMES,
    QWEN_OUTER_NAMES,
    Family,
    RawConfig,
    qwen_fields,
)
from shared.model_families import block_length_of

_REQUIRED = {"hidden_act": "silu", "use_sliding_window": False}


def _parse_qwen3(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="a2d_qwen3", **qwen_fields(raw), qk_norm=True, block_length=block_length_of(raw))


def _parse_qwen2(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="a2d_qwen2", **qwen_fields(raw), qkv_bias=True, block_length=block_length_of(raw))


A2D_QWEN3 = Family(
    architecture="A2DQwen3LMHeadModel",
    required={**_REQUIRED, "attention_bias": False},
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names={**QWEN_LAYER_NAMES, **QWEN_NORM_NAMES},
    parse=_parse_qwen3,
)
A2D_QWEN2 = Family(
    architecture="A2DQwen2LMHeadModel",
    required=_REQUIRED,
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names=QWEN_LAYER_NAMES,
    parse=_parse_qwen2,
)
