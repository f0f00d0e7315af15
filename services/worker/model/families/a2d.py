"""A2D: Qwen's models, trained further as diffusion models. They attend in both directions, or are block-causal if the
file has a `block_size` (`block_length_of`).

Source: ZHZisZZ/dllm, whose files train and convert them.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import QWEN3_LAYER_NAMES, QWEN_LAYER_NAMES, Family, RawConfig, qwen_fields

_REQUIRED = {"hidden_act": "silu", "use_sliding_window": False}


def _parse_qwen3(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="a2d_qwen3", **qwen_fields(raw), qk_norm=True)


def _parse_qwen2(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="a2d_qwen2", **qwen_fields(raw), qkv_bias=True)


A2D_QWEN3 = Family(
    architecture="A2DQwen3LMHeadModel",
    required={**_REQUIRED, "attention_bias": False},
    layer_names=QWEN3_LAYER_NAMES,
    parse=_parse_qwen3,
)
A2D_QWEN2 = Family(
    architecture="A2DQwen2LMHeadModel", required=_REQUIRED, layer_names=QWEN_LAYER_NAMES, parse=_parse_qwen2
)
