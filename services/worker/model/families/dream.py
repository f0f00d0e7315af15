"""Dream: Qwen2's shapes, bidirectional attention, logits that are shifted by one position."""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import QWEN_LAYER_NAMES, Family, RawConfig, qwen_fields


def _parse(raw: RawConfig) -> ModelConfig:
    return ModelConfig(
        family="dream", **qwen_fields(raw), qkv_bias=True, shifted_logits=True, confidence_at_temperature=True
    )


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
    layer_names=QWEN_LAYER_NAMES,
    parse=_parse,
)
