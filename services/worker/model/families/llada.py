"""LLaDA: Llama's shape, attention in both directions."""

from services.worker.model.families.config import ModelConfig
from services.worker.model.families.family import Family, RawConfig, head_dim_of, rope_of
from shared.model_families import max_length_of


def _parse(raw: RawConfig) -> ModelConfig:
    """A file may leave out the number of key/value heads and of embedding rows."""
    width, num_heads = int(raw["d_model"]), int(raw["n_heads"])
    head_dim = head_dim_of(width, num_heads)
    kv_heads = raw.get("n_kv_heads")
    if kv_heads is None:
        kv_heads = 1 if raw.get("multi_query_attention") else num_heads
    return ModelConfig(
        family="llada",
        num_layers=int(raw["n_layers"]),
        width=width,
        num_heads=num_heads,
        num_kv_heads=int(kv_heads),
        head_dim=head_dim,
        rotary_dim=head_dim,
        mlp_width=int(raw["mlp_hidden_size"]),
        vocab_size=int(raw.get("embedding_size") or raw["vocab_size"]),
        rope_base=float(rope_of(raw)["rope_theta"]),
        norm_eps=float(raw["rms_norm_eps"]),
        qkv_bias=bool(raw.get("include_qkv_bias", False)),
        mask_token_id=int(raw["mask_token_id"]),
        eos_token_id=int(raw["eos_token_id"]),
        max_length=max_length_of(raw),
        tied_head=bool(raw.get("weight_tying", False)),
    )


LLADA = Family(
    architecture="LLaDAModelLM",
    required={
        "bd_size": None,  # this and `block_size`: of block-causal models under the name of a bidirectional one
        "block_size": None,
        "activation_type": "silu",
        "alibi": False,
        "attention_layer_norm": False,
        "block_type": "llama",
        "include_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "rope": True,
        "rope_full_precision": True,
        "scale_logits": False,
    },
    outer_names={
        "embed": "model.transformer.wte",
        "norm": "model.transformer.ln_f",
        "head": "model.transformer.ff_out",
    },
    layer_prefix="model.transformer.blocks",
    layer_names={
        "attn_norm": ("attn_norm",),
        "qkv": ("q_proj", "k_proj", "v_proj"),
        "attn_out": ("attn_out",),
        "mlp_norm": ("ff_norm",),
        "mlp.gate_up": ("ff_proj", "up_proj"),
        "mlp.down": ("ff_out",),
    },
    parse=_parse,
)
