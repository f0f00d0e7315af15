"""SDAR: Qwen3's dense shape, block-causal.

Source: the published modelling file and configurations of JetLM/SDAR.
"""

from collections.abc import Mapping
from typing import ClassVar

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import (
    QWEN_LAYER_NAMES,
    QWEN_OUTER_NAMES,
    RawConfig,
    check_settings,
    qwen_sizes,
)
from shared.model_families import block_length_of

_REQUIRED = {"attention_bias": False, "hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False}


class Sdar:
    """The family, as the protocol."""

    name = "sdar"
    architecture = "SDARForCausalLM"
    outer_names: ClassVar[Mapping[str, str]] = QWEN_OUTER_NAMES
    layer_prefix = "model.layers"
    layer_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **QWEN_LAYER_NAMES,
        "q_norm": ("self_attn.q_norm",),
        "k_norm": ("self_attn.k_norm",),
    }

    def parse(self, raw: RawConfig) -> ModelConfig:
        """As the protocol."""
        check_settings(raw, _REQUIRED)
        head_dim = int(raw["head_dim"])
        return ModelConfig(
            family=self.name,
            **qwen_sizes(raw),
            head_dim=head_dim,
            rotary_dim=head_dim,
            qk_norm=True,
            tied_head=bool(raw.get("tie_word_embeddings", False)),
            mask_token_id=int(raw["mask_token_id"]),
            eos_token_id=int(raw["eos_token_id"]),
            block_length=block_length_of(raw),
        )
