"""LLaDA-MoE: attention in both directions, and experts with softmax routing, whose weights are not normalized.

Source: the modelling file of inclusionAI's checkpoints.
"""

from services.worker.model.families.config import MAX_LAYERS, ModelConfig
from services.worker.model.families.family import (
    QWEN3_LAYER_NAMES,
    QWEN_EXPERT_NAMES,
    Family,
    RawConfig,
    qwen_fields,
    softmax_experts,
)
from shared.model_families import whole


def _parse(raw: RawConfig) -> ModelConfig:
    kinds, num_layers = raw["moe_layer_freq"], whole(raw, "num_hidden_layers", most=MAX_LAYERS)
    num_dense_layers = kinds.index(1) if isinstance(kinds, list) and 1 in kinds else num_layers
    if kinds != [0] * num_dense_layers + [1] * (num_layers - num_dense_layers):
        raise ValueError(f"moe_layer_freq is {kinds}, only 0 for the first layers and 1 for all others is implemented")
    experts = softmax_experts(raw, num_dense_layers, is_normalized=False)
    return ModelConfig(family="llada_moe", **qwen_fields(raw), qk_norm=bool(raw.get("qk_layernorm")), experts=experts)


LLADA_MOE = Family(
    architecture="LLaDAMoEModelLM",
    required={
        "bd_size": None,  # this and `block_size`: of block-causal models under the name of a bidirectional one
        "block_size": None,
        "attention_bias": False,
        "clip_qkv": None,
        "hidden_act": "silu",
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "shared_expert_intermediate_size": None,
    },
    layer_names={**QWEN3_LAYER_NAMES, **QWEN_EXPERT_NAMES},
    parse=_parse,
)
