"""Dream: Qwen2's shape, attention in both directions, logits shifted by one position."""

from collections.abc import Mapping
from typing import ClassVar

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import (
    QWEN_LAYER_NAMES,
    QWEN_OUTER_NAMES,
    RawConfig,
    check_settings,
    head_dim_of,
    qwen_sizes,
    refuse_block_causal,
)

_REQUIRED = {
    "hidden_act": "silu",
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
}


class Dream:
    """The family, as the protocol."""

    name = "dream"
    architecture = "DreamModel"
    outer_names: ClassVar[Mapping[str, str]] = QWEN_OUTER_NAMES
    layer_prefix = "model.layers"
    layer_names: ClassVar[Mapping[str, tuple[str, ...]]] = QWEN_LAYER_NAMES

    def parse(self, raw: RawConfig) -> ModelConfig:
        """As the protocol."""
        refuse_block_causal(raw)
        check_settings(raw, _REQUIRED)
        sizes = qwen_sizes(raw)
        head_dim = head_dim_of(sizes["width"], sizes["num_heads"])
        return ModelConfig(
            family=self.name,
            **sizes,
            head_dim=head_dim,
            rotary_dim=head_dim,
            qkv_bias=True,
            mask_token_id=int(raw["mask_token_id"]),
            eos_token_id=int(raw["eos_token_id"]),
            shifted_logits=True,
            confidence_at_temperature=True,
        )
