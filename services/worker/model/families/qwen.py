"""Families of Qwen's shapes: Dream, of Qwen2's, and SDAR, of Qwen3's dense one.

Dream attends in both directions, and its logits are shifted by one position. SDAR is block-causal; its source: the
published modelling file and configurations of JetLM/SDAR.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import QWEN_LAYER_NAMES, QWEN_OUTER_NAMES, Family, RawConfig, qwen_fields
from shared.model_families import block_length_of


def _parse_dream(raw: RawConfig) -> ModelConfig:
    return ModelConfig(
        family="dream", **qwen_fields(raw), qkv_bias=True, shifted_logits=True, confidence_at_temperature=True
    )


def _parse_sdar(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="sdar", **qwen_fields(raw), qk_norm=True, block_length=block_length_of(raw))


DREAM = Family(
    architecture="DreamModel",
    required={
        "bd_size": None,  # this and `block_size`: of block-causal models under the name of a bidirectional one
        "block_size": None,
        "delete_token_id": None,  # this and `expand_token_id`: of DreamOn, which inserts and deletes tokens
        "expand_token_id": None,
        "hidden_act": "silu",
        "use_mrope": False,
        "use_sliding_window": False,
    },
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names=QWEN_LAYER_NAMES,
    parse=_parse_dream,
)

SDAR = Family(
    architecture="SDARForCausalLM",
    required={"attention_bias": False, "hidden_act": "silu", "use_sliding_window": False},
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names={**QWEN_LAYER_NAMES, "q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",)},
    parse=_parse_sdar,
)
