"""SDAR: Qwen3's shapes, dense or with experts, block-causal.

Source: the published modelling files and configurations of JetLM's SDAR.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import (
    QWEN_EXPERT_NAMES,
    QWEN_LAYER_NAMES,
    QWEN_NORM_NAMES,
    QWEN_OUTER_NAMES,
    Family,
    RawConfig,
    qwen_fields,
    softmax_experts,
)
from shared.model_families import block_length_of

_REQUIRED = {"attention_bias": False, "hidden_act": "silu", "use_sliding_window": False}


def _parse(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="sdar", **qwen_fields(raw), qk_norm=True, block_length=block_length_of(raw))


def _parse_moe(raw: RawConfig) -> ModelConfig:
    experts = softmax_experts(raw, is_normalized=bool(raw.get("norm_topk_prob", False)))  # Qwen3's default
    return ModelConfig(
        family="sdar_moe", **qwen_fields(raw), qk_norm=True, experts=experts, block_length=block_length_of(raw)
    )


SDAR = Family(
    architecture="SDARForCausalLM",
    required=_REQUIRED,
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names={**QWEN_LAYER_NAMES, **QWEN_NORM_NAMES},
    parse=_parse,
)
SDAR_MOE = Family(
    architecture="SDARMoeForCausalLM",
    required={**_REQUIRED, "decoder_sparse_step": 1, "mlp_only_layers": []},  # each layer has experts
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names={**QWEN_LAYER_NAMES, **QWEN_NORM_NAMES, **QWEN_EXPERT_NAMES},
    parse=_parse_moe,
)
