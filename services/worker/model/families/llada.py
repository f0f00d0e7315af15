"""LLaDA: Llama's shape, attention in both directions."""

from services.worker.model.families.config import MAX_LAYERS, ModelConfig
from services.worker.model.families.family import Family, RawConfig, head_dim_of, real, rope_of
from shared.model_families import max_length_of, vocab_size_of, whole


def _parse(raw: RawConfig) -> ModelConfig:
    """A file may leave out the number of key/value heads and of embedding rows."""
    width, num_heads = whole(raw, "d_model"), whole(raw, "n_heads")
    head_dim = head_dim_of(width, num_heads)
    shared = {"n_kv_heads": 1 if raw.get("multi_query_attention") else num_heads}
    return ModelConfig(
        family="llada",
        num_layers=whole(raw, "n_layers", most=MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        num_kv_heads=whole({**shared, **raw}, "n_kv_heads"),
        head_dim=head_dim,
        rotary_dim=head_dim,
        mlp_width=whole(raw, "mlp_hidden_size"),
        vocab_size=vocab_size_of(raw),
        rope_base=real(rope_of(raw), "rope_theta"),
        norm_eps=real(raw, "rms_norm_eps"),
        qkv_bias=bool(raw.get("include_qkv_bias", False)),
        mask_token_id=whole(raw, "mask_token_id", least=0),
        eos_token_id=whole(raw, "eos_token_id", least=0),
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
