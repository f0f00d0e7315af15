"""A family of checkpoints, and the parts that families share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.worker.model.families.config import ModelConfig
from shared.model_families import max_length_of

RawConfig = Mapping[str, Any]
"""The keys of a config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The checkpoints of one architecture: how their shape is read, and the names of their weights."""

    architecture: str  # as in config.json
    required: Mapping[str, Any]  # the one value of each setting that is implemented; a missing key counts as it
    outer_names: Mapping[str, str]  # the published ones of the embedding, the final norm and the head, by the decoder's
    layer_prefix: str  # the names' part before the layer's index
    # The published parts of each parameter of a layer, in the order of its rows. `{}` is an expert's index. A parameter
    # is known by its module (then its published name is the part's, with the kind behind it), or by its own name (then
    # the published names are whole, with `{layer}` in place of the index).
    layer_names: Mapping[str, tuple[str, ...]]
    # Raises: ValueError for another setting that the decoder does not implement; KeyError for a missing key
    parse: Callable[[RawConfig], ModelConfig]


QWEN_OUTER_NAMES = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
QWEN_LAYER_NAMES = {
    "attn_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn_out": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}


def qwen_fields(raw: RawConfig) -> dict[str, Any]:
    """The sizes and ids under the keys of Qwen's configurations, which most families use."""
    width, num_heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    head_dim = int(raw.get("head_dim") or head_dim_of(width, num_heads))
    return {
        "num_layers": int(raw["num_hidden_layers"]),
        "width": width,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "rotary_dim": head_dim,
        "num_kv_heads": int(raw["num_key_value_heads"]),
        "mlp_width": int(raw["intermediate_size"]),
        "vocab_size": int(raw["vocab_size"]),
        "norm_eps": float(raw["rms_norm_eps"]),
        "rope_base": float(rope_of(raw)["rope_theta"]),
        "max_length": max_length_of(raw),
        "mask_token_id": int(raw["mask_token_id"]),
        "eos_token_id": int(raw["eos_token_id"]),
        "tied_head": bool(raw.get("tie_word_embeddings", False)),
    }


def head_dim_of(width: int, num_heads: int) -> int:
    """The size of a head where the file does not name it. Raises: ValueError if the heads do not fill the width."""
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"width {width} is not a multiple of {num_heads} heads")
    return width // num_heads


def rope_of(raw: RawConfig) -> dict[str, Any]:
    """`raw`, with the keys of the rotation that are not at the top, but in `rope_scaling` or, as transformers 5 writes
    them, in `rope_parameters`. Raises: ValueError if they stretch it."""
    own = (raw.get("rope_scaling") or {}) | (raw.get("rope_parameters") or {})
    kind = own.get("rope_type") or own.get("type") or "default"
    if kind != "default" or own.get("factor") not in (None, 1):
        raise ValueError(
            f"rope_type is {kind!r}, factor {own.get('factor')}: only 'default' without one is implemented"
        )
    return {**raw, **{key: value for key, value in own.items() if value is not None}}
