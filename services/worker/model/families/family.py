"""A family of checkpoints, and the parts that families share."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.worker.model.families.config import MAX_EXPERTS, MAX_LAYERS, Experts, ModelConfig
from shared.model_families import block_length_of, max_length_of, vocab_size_of, whole

RawConfig = Mapping[str, Any]
"""The keys of a config.json."""


FULL = "full_attention"  # as in `layer_types`
QWEN_OUTER_NAMES = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
QWEN_LAYER_NAMES = {
    "attn_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn_out": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}
QWEN3_LAYER_NAMES = {**QWEN_LAYER_NAMES, "q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",)}
QWEN_EXPERT_NAMES = {
    "mlp.router": ("mlp.gate",),
    "mlp.experts.gate_up": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
    "mlp.experts.down": ("mlp.experts.{}.down_proj",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The checkpoints of one architecture: how their shape is read, and the names of their weights."""

    architecture: str  # as in config.json
    required: Mapping[str, Any]  # the one value of each setting that is implemented; a missing key is accepted
    # The published names of the embedding, the final norm and the head; the keys are the decoder's own names
    outer_names: Mapping[str, str] = field(default_factory=lambda: QWEN_OUTER_NAMES)
    layer_prefix: str = "model.layers"  # the names' part before the layer's index
    # The published parameters that a parameter of a layer joins, in the order of its rows. `{}` is an expert's index.
    # A key is a module of the decoder's layer (then `.weight` or `.bias` is added to the published names), or the whole
    # name of a parameter (then the published names are whole too, with `{layer}` in place of the layer's index).
    layer_names: Mapping[str, tuple[str, ...]]
    # Raises: ValueError for another setting that the decoder does not implement; KeyError for a missing key
    parse: Callable[[RawConfig], ModelConfig]


def qwen_fields(raw: RawConfig, rotated: float = 1.0) -> dict[str, Any]:
    """The sizes and ids under the keys of Qwen's configurations, which most families use. `rotated`: the share of each
    head that is rotated where the file does not name it; with 1, no other share is accepted. Raises: as `Family.parse`.
    """
    width, num_heads = whole(raw, "hidden_size"), whole(raw, "num_attention_heads")
    head_dim = whole(raw, "head_dim") if raw.get("head_dim") else head_dim_of(width, num_heads)
    rope = {"partial_rotary_factor": rotated} | rope_of(raw)
    share = real(rope, "partial_rotary_factor")
    if rotated == 1 and share != 1:
        raise ValueError(f"partial_rotary_factor is {share}, only 1 is implemented")
    if others := {*raw.get("layer_types", ())} - {FULL}:
        raise ValueError(f"layer_types has {', '.join(map(str, others))}, only {FULL} is implemented")
    return {
        "num_layers": whole(raw, "num_hidden_layers", most=MAX_LAYERS),
        "width": width,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "rotary_dim": int(head_dim * share),
        "num_kv_heads": whole(raw, "num_key_value_heads"),
        "mlp_width": whole(raw, "intermediate_size"),
        "vocab_size": vocab_size_of(raw),
        "norm_eps": real(raw, "rms_norm_eps"),
        "rope_base": real(rope, "rope_theta"),
        "max_length": max_length_of(raw),
        "mask_token_id": whole(raw, "mask_token_id", least=0),
        "eos_token_id": whole(raw, "eos_token_id", least=0),
        "tied_head": bool(raw.get("tie_word_embeddings", False)),
        "block_length": block_length_of(raw),
    }


def softmax_experts(raw: RawConfig, num_dense_layers: int = 0, *, is_normalized: bool) -> Experts:
    """Experts that the softmax of the router chooses, under the keys of Qwen's configurations. Raises: as
    `Family.parse`."""
    return Experts(
        num_dense_layers=num_dense_layers,
        count=whole(raw, "num_experts", most=MAX_EXPERTS),
        per_token=whole(raw, "num_experts_per_tok"),
        width=whole(raw, "moe_intermediate_size"),
        shared_width=0,
        groups=1,
        kept_groups=1,
        scale=1,
        is_softmax=True,
        is_normalized=is_normalized,
    )


def real(config: Mapping[str, Any], key: str, *, may_be_0: bool = False) -> float:
    """A number. Raises: KeyError if it is missing; ValueError unless it is finite and above 0, or 0 with `may_be_0`."""
    value = config[key]
    if type(value) not in (int, float) or not (0 < value < math.inf or (may_be_0 and value == 0)):
        raise ValueError(f"{key} must be a finite number above 0, got {value!s:.50}")
    return float(value)


def head_dim_of(width: int, num_heads: int) -> int:
    """The size of a head where the file does not name it. Raises: ValueError if the heads do not fill the width."""
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"width {width} is not a multiple of {num_heads} heads")
    return width // num_heads


def rope_of(raw: RawConfig, layer_type: str = FULL, kinds: Collection[str] = ("default",)) -> dict[str, Any]:
    """`raw`, with the keys of the rotation of layers of this type at the top.

    Source: transformers 5. `rope_scaling` counts before `rope_parameters`, and a key there before the same one at the
    top of the file; either may have the keys for each type of layers.
    Raises: ValueError if they have none for these layers, or stretch the rotation, or its kind is not one of `kinds`.
    """
    name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    own = raw.get(name, {})
    if any(key.endswith("_attention") for key in own):
        own = own.get(layer_type)
    if not isinstance(own, Mapping):
        raise ValueError(f"{name} has no keys for {layer_type}")  # noqa: TRY004 - the file is wrong, not the call
    kind = own.get("rope_type") or own.get("type") or "default"
    if kind not in kinds or own.get("factor") not in (None, 1):
        accepted = " and ".join(map(repr, kinds))
        raise ValueError(
            f"rope_type is {kind!r}, factor {own.get('factor')}: only {accepted} without one is implemented"
        )
    return {**raw, "rope_type": kind, **{key: value for key, value in own.items() if value is not None}}
