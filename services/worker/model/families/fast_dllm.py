"""Fast-dLLM v2: Qwen2's shapes, block-causal, with logits that are shifted by one position.

Source: the published modelling file of NVIDIA's Fast_dLLM_v2, whose decoding fills sub-blocks of 8 one after another.
"""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import QWEN_LAYER_NAMES, Family, RawConfig, qwen_fields

SUB_BLOCK = 8


def _parse(raw: RawConfig) -> ModelConfig:
    return ModelConfig(
        family="fast_dllm",
        **qwen_fields(raw),
        qkv_bias=True,
        shifted_logits=True,
        confidence_at_temperature=True,
        sub_block_length=SUB_BLOCK,
    )


FAST_DLLM = Family(
    architecture="Fast_dLLM_QwenForCausalLM",
    required={"hidden_act": "silu", "use_sliding_window": False},
    layer_names=QWEN_LAYER_NAMES,
    parse=_parse,
)
