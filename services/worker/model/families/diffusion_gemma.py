"""DiffusionGemma: a causal encoder of the finished text, and a decoder with the same weights that denoises a canvas.

Source: the modelling, configuration and generation files of transformers 5.23.
"""

from collections.abc import Mapping
from typing import Any

from services.worker.model.families.config import AttentionShape, CanvasRules, Experts, ModelConfig
from services.worker.model.families.family import QWEN_LAYER_NAMES, Family, RawConfig
from shared.model_families import block_length_of, canvas_steps_of, max_length_of

_LAYER = "model.decoder.layers.{layer}"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ROPE: dict[str, dict[str, Any]] = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
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
        width=int(raw["hidden_size"]),
        num_heads=int(raw["num_attention_heads"]),
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        rotary_dim=first.rotary_dim,
        rope_base=first.rope_base,
        mlp_width=int(raw["intermediate_size"]),
        vocab_size=int(raw["vocab_size"]),
        norm_eps=float(raw["rms_norm_eps"]),
        max_length=max_length_of(raw),
        qk_norm=True,
        tied_head=True,
        experts=Experts(
            num_dense_layers=0,
            count=int(raw["num_experts"]),
            per_token=int(raw["top_k_experts"]),
            width=int(raw["moe_intermediate_size"]),
            shared_width=int(raw["intermediate_size"]),
            groups=1,
            kept_groups=1,
            scale=1.0,
        ),
        mask_token_id=int(raw["mask_token_id"]),
        eos_token_id=int(raw["eos_token_id"]),
        confidence_at_temperature=True,
        block_length=block_length_of(raw),
        canvas=_rules(raw, raw.get("generation", {})),
        own_attention=layers,
        logit_cap=float(raw.get("final_logit_softcapping", 30.0)),
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
    count = int(raw["num_hidden_layers"])
    kinds = raw.get("layer_types") or [_SLIDING if (i + 1) % _FULL_EVERY else _FULL for i in range(count)]
    if len(kinds) != count or not {*kinds} <= {_SLIDING, _FULL}:
        raise ValueError(f"layer_types must be {count} of {_SLIDING} and {_FULL}, got {kinds}")
    return tuple(_attention(raw, index, kind) for index, kind in enumerate([*kinds[:-1], _FULL]))


def _attention(raw: RawConfig, index: int, kind: str) -> AttentionShape:
    own: dict[str, Any] = {key: raw[key] for key in ("head_dim", "num_key_value_heads")}
    if raw.get("per_layer_config") is not None:
        own |= raw["per_layer_config"].get(str(index), {})
    elif kind == _FULL:
        own["head_dim"] = raw.get("global_head_dim") or 512
        own["num_key_value_heads"] = raw.get("num_global_key_value_heads") or own["num_key_value_heads"]
    rope: Mapping[str, Any] = (raw.get("rope_parameters") or _ROPE)[kind]
    head_dim, rope_type = int(own["head_dim"]), rope.get("rope_type", "default")
    share = float(rope.get("partial_rotary_factor", 1.0))
    is_known = rope_type == "proportional" or (rope_type == "default" and share == 1)
    if not is_known or rope.get("factor", 1.0) != 1.0:
        raise ValueError(f"rope_parameters of {kind}: {rope}, only default (whole) and proportional are implemented")
    return AttentionShape(
        num_kv_heads=int(own["num_key_value_heads"]),
        head_dim=head_dim,
        rotary_dim=2 * int(share * head_dim // 2),
        rope_base=float(rope["rope_theta"]),
        rope_span=head_dim,
        window=int(raw["sliding_window"]) if kind == _SLIDING else 0,
        keys_are_values=kind == _FULL,
    )


def _rules(raw: RawConfig, generation: Mapping[str, Any]) -> CanvasRules:
    """The decoding of generation_config.json; what it leaves out is as in the authors' code."""

    def value(key: str, usual: float) -> float:
        found = generation.get(key)
        return usual if found is None else found

    sampler = generation.get("sampler_config") or {}
    return CanvasRules(
        max_steps=canvas_steps_of(raw, generation),
        entropy_bound=float(sampler.get("entropy_bound", 0.1)),
        t_min=float(value("t_min", 0.4)),
        t_max=float(value("t_max", 0.8)),
        stable_steps=int(value("stability_threshold", 1)),
        max_mean_entropy=float(value("confidence_threshold", 0.005)),
    )
