"""Reads the shape of a model from the `config.json` beside its weights.

Determines the family of the checkpoint and rejects settings that the decoder does not implement. Every shape, id,
epsilon and rope base is read from the file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shared.model_files import max_length_of

Family = Literal["llada", "dream"]

_BLOCK_CAUSAL_KEYS = ("block_size", "bd_size")  # the length of their blocks

_FAMILY_OF_ARCHITECTURE: dict[str, Family] = {"LLaDAModelLM": "llada", "DreamModel": "dream"}

# The settings that the decoder implements. A file with another value is rejected; a missing key counts as this value.
_REQUIRED: dict[Family, dict[str, Any]] = {
    "llada": {
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
        "weight_tying": False,
    },
    "dream": {
        "hidden_act": "silu",
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "use_mrope": False,
        "use_sliding_window": False,
    },
}

# The published keys of sizes.
_SIZES: dict[str, dict[Family, str]] = {
    "num_layers": {"llada": "n_layers", "dream": "num_hidden_layers"},
    "width": {"llada": "d_model", "dream": "hidden_size"},
    "num_heads": {"llada": "n_heads", "dream": "num_attention_heads"},
    "num_kv_heads": {"llada": "n_kv_heads", "dream": "num_key_value_heads"},
    "mlp_width": {"llada": "mlp_hidden_size", "dream": "intermediate_size"},
    "vocab_size": {"llada": "embedding_size", "dream": "vocab_size"},
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one model. Units: lengths in tokens, `vocab_size` in rows of the embedding and of the head."""

    family: Family
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    rope_base: float
    norm_eps: float
    qkv_bias: bool
    shifted_logits: bool  # the logits at position p - 1 are for the token at p
    mask_token_id: int
    eos_token_id: int
    max_length: int  # tokens of prompt and output together

    def __post_init__(self) -> None:
        sizes = (self.num_layers, self.width, self.num_heads, self.num_kv_heads, self.mlp_width, self.vocab_size)
        if min(*sizes, self.max_length) < 1:
            raise ValueError("every size must be at least 1")
        if self.num_heads * self.head_dim != self.width:
            raise ValueError(f"width {self.width} is not a multiple of {self.num_heads} heads")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"rope needs an even head size, got {self.head_dim}")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(f"mask_token_id {self.mask_token_id} is outside the {self.vocab_size} embedding rows")


def read_config(directory: Path) -> ModelConfig:
    """Read `config.json` of a model directory.

    Raises: ValueError, one line, if the file is missing or unreadable, names an unknown family, lacks a key, or has a
    setting that the decoder does not implement.
    """
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"no model in {directory}: cannot read config.json ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} must hold one JSON object")  # noqa: TRY004 - the file is wrong, not the call
    try:
        return parse_config(raw)
    except KeyError as error:
        raise ValueError(f"{path} lacks the key {error}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{path}: {error}") from error


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig of the published keys. Raises: ValueError as `read_config`; KeyError for a missing key."""
    family = _family(raw)
    _check_bidirectional(raw)
    for key, value in _REQUIRED[family].items():
        if raw.get(key, value) != value:
            raise ValueError(f"{key} is {raw[key]!r}, only {value!r} is implemented")
    if family == "llada":
        raw = _with_llada_defaults(raw)
    sizes: dict[str, Any] = {field: int(raw[keys[family]]) for field, keys in _SIZES.items()}
    sizes["max_length"] = max_length_of(raw)
    return ModelConfig(
        family=family,
        **sizes,
        head_dim=sizes["width"] // sizes["num_heads"],
        rope_base=_rope_base(raw),
        norm_eps=float(raw["rms_norm_eps"]),
        qkv_bias=family == "dream" or bool(raw.get("include_qkv_bias", False)),
        shifted_logits=family == "dream",
        mask_token_id=int(raw["mask_token_id"]),
        eos_token_id=int(raw["eos_token_id"]),
    )


def _with_llada_defaults(raw: Mapping[str, Any]) -> dict[str, Any]:
    """LLaDA's files may leave out the number of key/value heads and of embedding rows."""
    kv_heads = raw.get("n_kv_heads")
    if kv_heads is None:
        kv_heads = 1 if raw.get("multi_query_attention") else raw["n_heads"]
    return {**raw, "n_kv_heads": kv_heads, "embedding_size": raw.get("embedding_size") or raw["vocab_size"]}


def _family(raw: Mapping[str, Any]) -> Family:
    architectures = raw.get("architectures") or []
    for architecture in architectures:
        if architecture in _FAMILY_OF_ARCHITECTURE:
            return _FAMILY_OF_ARCHITECTURE[architecture]
    named = ", ".join(map(str, architectures)) or "none"
    raise ValueError(f"architecture: {named}; supported: {', '.join(_FAMILY_OF_ARCHITECTURE)}")


def _check_bidirectional(raw: Mapping[str, Any]) -> None:
    """Raises: ValueError for a block-causal checkpoint, which may have the architecture of the one it was made from."""
    for key in _BLOCK_CAUSAL_KEYS:
        if raw.get(key) is not None:
            raise ValueError(f"{key} is {raw[key]!r}: a block-causal model; only bidirectional ones are supported")


def _rope_base(raw: Mapping[str, Any]) -> float:
    """transformers 5 writes `rope_theta` into `rope_parameters`."""
    parameters = raw.get("rope_parameters")
    if not parameters:
        return float(raw["rope_theta"])
    if parameters.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type is {parameters['rope_type']!r}, only 'default' is implemented")
    return float(parameters["rope_theta"])
