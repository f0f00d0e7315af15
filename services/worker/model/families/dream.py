"""Dream: Qwen2's shape, attention in both directions, logits shifted by one position."""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import (
    QWEN_LAYER_NAMES,
    QWEN_OUTER_NAMES,
    Family,
    RawConfig,
    check_settings,
    head_dim_of,
    qwen_fields,
    refuse_block_causal,
)

_REQUIRED = {
    "delete_token_id": None,  # this and `expand_token_id`: of DreamOn, which inserts and deletes tokens
    "expand_token_id": None,
    "hidden_act": "silu",
    "use_mrope": False,
    "use_sliding_window": False,
}


def _parse(raw: RawConfig) -> ModelConfig:
    refuse_block_causal(raw)
    check_settings({**raw.get("generation", {}), **raw}, _REQUIRED)
    sizes = qwen_fields(raw)
    head_dim = head_dim_of(sizes["width"], sizes["num_heads"])
    return ModelConfig(
        family="dream",
        **sizes,
        head_dim=head_dim,
        rotary_dim=head_dim,
        qkv_bias=True,
        shifted_logits=True,
        confidence_at_temperature=True,
    )


DREAM = Family(
    architecture="DreamModel",
    outer_names=QWEN_OUTER_NAMES,
    layer_prefix="model.layers",
    layer_names=QWEN_LAYER_NAMES,
    parse=_parse,
)
