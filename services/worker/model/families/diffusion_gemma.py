"""DiffusionGemma: a causal encoder of the finished text, and a decoder with the same weights that denoises a canvas.

Source: the modelling, configuration and generation files of transformers 5.23.
"""

from typing import Any

from services.worker.model.families.config import (
    MAX_EXPERTS,
    MAX_LAYERS,
    AttentionShape,
    CanvasRules,
    Experts,
    ModelConfig,
)
from services.worker.model.families.family import FULL, QWEN_LAYER_NAMES, Family, RawConfig, real, rope_of
from shared.model_families import block_length_of, canvas_steps_of, max_length_of, vocab_size_of, whole

_LAYER = "model.decoder.layers.{layer}"
_SLIDING = "sliding_attention"
_ROPE = {
    "rope_parameters": {
        _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    }
}
_FULL_EVERY = 6  # layers, where the file lists none


def _parse(raw: RawConfig) -> ModelConfig:
    """`raw` has generation_config.json under `generation`."""
    if raw.get("use_bidirectional_attention") not in (None, "vision"):
        raise ValueError("use_bidirectional_attention is 'all', only null and 'vision' are implemented")
    layers = _layers(raw)
    first = layers[0]
    return ModelConfig(
        family="diffusion_gemma",
        num_layers=len(layers),
        width=whole(raw, "hidden_size"),
        num_heads=whole(raw, "num_attention_heads"),
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        rotary_dim=first.rotary_dim,
        rope_base=first.rope_base,
        mlp_width=whole(raw, "intermediate_size"),
        vocab_size=vocab_size_of(raw),
        norm_eps=real(raw, "rms_norm_eps"),
        max_length=max_length_of(raw),
        qk_norm=True,
        tied_head=True,
        experts=Experts(
            num_dense_layers=0,
            count=whole(raw, "num_experts", most=MAX_EXPERTS),
            per_token=whole(raw, "top_k_experts"),
            width=whole(raw, "moe_intermediate_size"),
            shared_width=whole(raw, "intermediate_size"),
            groups=1,
            kept_groups=1,
            scale=1.0,
        ),
        mask_token_id=whole(raw, "mask_token_id"),
        eos_token_id=whole(raw, "eos_token_id", least=0),
        confidence_at_temperature=True,
        block_length=block_length_of(raw),
        canvas=_rules(raw),
        own_attention=layers,
        logit_cap=real({"final_logit_softcapping": 30.0, **raw}, "final_logit_softcapping"),
    )


DIFFUSION_GEMMA = Family(
    architecture="DiffusionGemmaForBlockDiffusion",
    required={"attention_bias": False, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},
    outer_names={
        "embed": "model.decoder.embed_tokens",
        "norm": "model.decoder.norm",
        "head": "lm_head",
        "conditioning.norm": "model.decoder.self_conditioning.pre_norm",
        "conditioning.gate": "model.decoder.self_conditioning.gate_proj",
        "conditioning.up": "model.decoder.self_conditioning.up_proj",
        "conditioning.down": "model.decoder.self_conditioning.down_proj",
    },
    layer_prefix="model.decoder.layers",
    layer_names={
        **QWEN_LAYER_NAMES,
        "q_norm": ("self_attn.q_norm",),
        "k_norm": ("self_attn.k_norm",),
        "attn_end_norm": ("post_attention_layernorm",),
        "mlp_norm": ("pre_feedforward_layernorm",),
        "mlp_end_norm": ("post_feedforward_layernorm_1",),
        "moe.router.proj": ("router.proj",),
        "moe.router": ("router",),
        "moe_norm": ("pre_feedforward_layernorm_2",),
        "moe.experts.gate_up.weight": (f"{_LAYER}.experts.gate_up_proj",),
        "moe.experts.down.weight": (f"{_LAYER}.experts.down_proj",),
        "moe_end_norm": ("post_feedforward_layernorm_2",),
        "end_norm": ("post_feedforward_layernorm",),
        "canvas_scale": (f"{_LAYER}.layer_scalar",),
        "text_scale": ("model.encoder.language_model.layers.{layer}.layer_scalar",),
    },
    parse=_parse,
)


def _layers(raw: RawConfig) -> tuple[AttentionShape, ...]:
    """The attention of each layer; the last one's is always full, as the authors' code has it."""
    count = whole(raw, "num_hidden_layers", most=MAX_LAYERS)
    kinds = raw.get("layer_types") or [_SLIDING if (i + 1) % _FULL_EVERY else FULL for i in range(count)]
    if len(kinds) != count or not {*kinds} <= {_SLIDING, FULL}:
        raise ValueError(f"layer_types must be {count} of {_SLIDING} and {FULL}, got {kinds}")
    return tuple(_attention(raw, index, kind) for index, kind in enumerate([*kinds[:-1], FULL]))


def _attention(raw: RawConfig, index: int, kind: str) -> AttentionShape:
    own: dict[str, Any] = {key: raw[key] for key in ("head_dim", "num_key_value_heads")}
    if raw.get("per_layer_config") is not None:
        own |= raw["per_layer_config"].get(str(index), {})
    elif kind == FULL:
        own["head_dim"] = raw.get("global_head_dim") or 512
        own["num_key_value_heads"] = raw.get("num_global_key_value_heads") or own["num_key_value_heads"]
    rope = {"partial_rotary_factor": 1.0} | rope_of({**_ROPE, **raw}, kind, ("default", "proportional"))
    head_dim, share = whole(own, "head_dim"), real(rope, "partial_rotary_factor")
    if share != 1 and rope["rope_type"] == "default":
        raise ValueError(f"partial_rotary_factor of {kind} is {share}, with rope_type 'default' only 1 is implemented")
    return AttentionShape(
        num_kv_heads=whole(own, "num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=2 * int(share * head_dim // 2),
        rope_base=real(rope, "rope_theta"),
        rope_span=head_dim,
        window=whole(raw, "sliding_window") if kind == _SLIDING else 0,
        keys_are_values=kind == FULL,
    )


def _rules(raw: RawConfig) -> CanvasRules:
    """The decoding of generation_config.json; what it leaves out is as in the authors' code."""
    given = {key: value for key, value in raw.get("generation", {}).items() if value is not None}
    usual = {"t_min": 0.4, "t_max": 0.8, "stability_threshold": 1, "confidence_threshold": 0.005}
    return CanvasRules(
        max_steps=canvas_steps_of(raw, given),
        entropy_bound=real({"entropy_bound": 0.1} | given.get("sampler_config", {}), "entropy_bound", may_be_0=True),
        t_min=real(usual | given, "t_min"),
        t_max=real(usual | given, "t_max"),
        stable_steps=whole(usual | given, "stability_threshold", least=0),
        max_mean_entropy=real(usual | given, "confidence_threshold", may_be_0=True),
    )
