"""SDAR: Qwen3's shapes, dense or with experts, block-causal.

Source: the published modelling files and configurations of JetLM's SDAR.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import (
    QWEN3_LAYER_NAMES,
    QWEN_EXPERT_NAMES,
    Family,
    RawConfig,
    qwen_fields,
    softmax_experts,
)

_REQUIRED = {"attention_bias": False, "hidden_act": "silu", "use_sliding_window": False}


def _parse(raw: RawConfig) -> ModelConfig:
    return ModelConfig(family="sdar", **qwen_fields(raw), qk_norm=True)


def _parse_moe(raw: RawConfig) -> ModelConfig:
    experts = softmax_experts(raw, is_normalized=bool(raw.get("norm_topk_prob", False)))  # Qwen3's default
    return ModelConfig(family="sdar_moe", **qwen_fields(raw), qk_norm=True, experts=experts)


SDAR = Family(architecture="SDARForCausalLM", required=_REQUIRED, layer_names=QWEN3_LAYER_NAMES, parse=_parse)
SDAR_MOE = Family(
    architecture="SDARMoeForCausalLM",
    required={**_REQUIRED, "decoder_sparse_step": 1, "mlp_only_layers": []},  # each layer has experts
    layer_names={**QWEN3_LAYER_NAMES, **QWEN_EXPERT_NAMES},
    parse=_parse_moe,
)
