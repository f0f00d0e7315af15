"""Stable-DiffCoder: Llama's shapes, block-causal.

Source: the published modelling file and configurations of ByteDance-Seed/Stable-DiffCoder.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import QWEN_LAYER_NAMES, QWEN_OUTER_NAMES, Family, RawConfig, qwen_fields
from shared.model_families import block_length_of


def _parse(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="stable_diffcoder", **qwen_fields(raw), block_length=block_length_of(raw))


STABLE_DIFFCODER = Family(
    architecture="StableDiffcoderForCausalLM",
    required={"attention_bias": False, "hidden_act": "silu", "mlp_bias": False},
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names=QWEN_LAYER_NAMES,
    parse=_parse,
)
