"""SDAR: Qwen3's dense shapes, block-causal.

Source: the published modelling file and configurations of JetLM/SDAR.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import QWEN_LAYER_NAMES, QWEN_OUTER_NAMES, Family, RawConfig, qwen_fields
from shared.model_families import block_length_of


def _parse(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="sdar", **qwen_fields(raw), qk_norm=True, block_length=block_length_of(raw))


SDAR = Family(
    architecture="SDARForCausalLM",
    required={"attention_bias": False, "hidden_act": "silu", "use_sliding_window": False},
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names={**QWEN_LAYER_NAMES, "q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",)},
    parse=_parse,
)
