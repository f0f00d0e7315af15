"""LLaDA2.0 and LLaDA2.1: experts with sigmoid routing, a part of each head rotated, block-causal.

Source: the modelling files of inclusionAI's checkpoints.
"""

from services.worker.model.families.config import MAX_EXPERTS, Experts, ModelConfig
from services.worker.model.families.family import QWEN_EXPERT_NAMES, Family, RawConfig, qwen_fields, real
from shared.model_families import architecture_of, whole


def _parse(raw: RawConfig) -> ModelConfig:
    width = whole(raw, "moe_intermediate_size")
    return ModelConfig(
        family="llada2",
        **qwen_fields(raw, rotated=0.5),
        qk_norm=True,
        experts=Experts(
            num_dense_layers=whole(raw, "first_k_dense_replace", least=0),
            count=whole(raw, "num_experts", most=MAX_EXPERTS),
            per_token=whole(raw, "num_experts_per_tok"),
            width=width,
            shared_width=width * whole(raw, "num_shared_experts"),
            groups=whole(raw, "n_group"),
            kept_groups=whole(raw, "topk_group"),
            scale=real(raw, "routed_scaling_factor"),
        ),
        can_edit=architecture_of(raw).can_edit,
    )


LLADA2 = Family(
    architecture="LLaDA2MoeModelLM",
    required={
        "delete_token_id": None,  # this and `split_token_id`: of LLaDA2.2, which inserts and deletes tokens
        "hidden_act": "silu",
        "moe_router_enable_expert_bias": True,
        "norm_head": False,
        "norm_topk_prob": True,
        "score_function": "sigmoid",
        "split_token_id": None,
        "use_bias": False,
        "use_qkv_bias": False,
        "use_sliding_window": False,
    },
    outer_names={"embed": "model.word_embeddings", "norm": "model.norm", "head": "lm_head"},
    layer_names={
        "attn_norm": ("input_layernorm",),
        "qkv": ("attention.query_key_value",),
        "q_norm": ("attention.query_layernorm",),
        "k_norm": ("attention.key_layernorm",),
        "attn_out": ("attention.dense",),
        "mlp_norm": ("post_attention_layernorm",),
        "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",),
        **QWEN_EXPERT_NAMES,
        "mlp.shared.gate_up": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
        "mlp.shared.down": ("mlp.shared_experts.down_proj",),
    },
    parse=_parse,
)
