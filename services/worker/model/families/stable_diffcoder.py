"""Stable-DiffCoder: Llama's shapes, block-causal.

Source: the published modelling file and configurations of ByteDance-Seed/Stable-DiffCoder.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import QWEN_LAYER_NAMES, Family, RawConfig, qwen_fields


def _parse(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="stable_diffcoder", **qwen_fields(raw))


STABLE_DIFFCODER = Family(
    architecture="StableDiffcoderForCausalLM",
    required={"attention_bias": False, "hidden_act": "silu", "mlp_bias": False},
    layer_names=QWEN_LAYER_NAMES,
    parse=_parse,
)
