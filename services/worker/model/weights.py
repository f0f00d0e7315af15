"""Loads and saves a decoder as safetensors, under the parameter names of the published checkpoints.

The decoder keeps query, key and value, and gate and up, as one matrix each; the files keep them apart. A `WeightTarget`
is one published parameter with its place in the decoder.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from services.worker.model.decoder import WHOLE, PackedDecoder, Reduce, Shard
from services.worker.model.families import Family, ModelConfig, read_config

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class WeightTarget:
    """The decoder's rows that hold a published parameter: all of it, or one rank's share along `axis`."""

    rows: Tensor
    axis: int = -1  # -1: not split
    first: int = 0  # where the share begins
    axis_length: int = 0  # of the published parameter
    rotary_dim: int = 0  # of each head, if its published halves are interleaved here: the pairs of `rotate_`

    @property
    def shape(self) -> list[int]:
        """The published parameter's shape."""
        shape = list(self.rows.shape)
        if self.axis >= 0:
            shape[self.axis] = self.axis_length
        return shape

    def load(self, published: Tensor) -> None:
        """Copy the published parameter, or this rank's share of it, into the rows."""
        is_whole = self.axis < 0
        share = published if is_whole else published.narrow(self.axis, self.first, self.rows.shape[self.axis])
        rows = self._in_published_order()
        rows.copy_(share.reshape(rows.shape))

    def published(self) -> Tensor:
        """The rows in the published order."""
        rows = self._in_published_order()
        return rows.flatten(0, 2) if self.rotary_dim else rows

    def _in_published_order(self) -> Tensor:
        """A view of the rows; those of a head as [heads, halves, D / 2, ...]."""
        if not self.rotary_dim:
            return self.rows
        return self.rows.view(-1, self.rotary_dim // 2, 2, *self.rows.shape[1:]).transpose(1, 2)


# The published names by family. Those of a layer's parameters follow a prefix and the layer's index.
_LAYER_PREFIX: dict[Family, str] = {"llada": "model.transformer.blocks", "dream": "model.layers"}
_OUTER_NAMES: dict[str, dict[Family, str]] = {
    "embed": {"llada": "model.transformer.wte", "dream": "model.embed_tokens"},
    "norm": {"llada": "model.transformer.ln_f", "dream": "model.norm"},
    "head": {"llada": "model.transformer.ff_out", "dream": "lm_head"},
}
_LAYER_NAMES: dict[str, dict[Family, list[str]]] = {
    "attn_norm": {"llada": ["attn_norm"], "dream": ["input_layernorm"]},
    "qkv": {
        "llada": ["q_proj", "k_proj", "v_proj"],
        "dream": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    },
    "attn_out": {"llada": ["attn_out"], "dream": ["self_attn.o_proj"]},
    "mlp_norm": {"llada": ["ff_norm"], "dream": ["post_attention_layernorm"]},
    "gate_up": {"llada": ["ff_proj", "up_proj"], "dream": ["mlp.gate_proj", "mlp.up_proj"]},
    "down": {"llada": ["ff_out"], "dream": ["mlp.down_proj"]},
}


def weight_targets(decoder: PackedDecoder) -> dict[str, WeightTarget]:
    """Every published parameter's place in the decoder, by its published name."""
    family, targets = decoder.config.family, {}
    for name, parameter in decoder.named_parameters():
        module, _, kind = name.rpartition(".")
        if module in _OUTER_NAMES:
            parts = [_OUTER_NAMES[module][family]]
        else:
            _, index, module = module.split(".")
            parts = [f"{_LAYER_PREFIX[family]}.{index}.{part}" for part in _LAYER_NAMES[module][family]]
        start = 0
        for part, (num_rows, *split) in zip(parts, _splits(module, parameter, decoder), strict=True):
            targets[f"{part}.{kind}"] = WeightTarget(parameter.detach()[start : start + num_rows], *split)
            start += num_rows
    return targets


def _splits(module: str, parameter: Tensor, decoder: PackedDecoder) -> list[tuple[int, ...]]:
    """Of each published part of a parameter: the number of its rows here, and (axis, first, axis_length, rotary_dim), a
    missing rotary_dim being 0."""
    config, shard = decoder.config, decoder.shard
    size, rank, head = shard.size, shard.rank, config.head_dim
    match module:
        case "qkv":
            q_rows, (kv_first, kv_heads) = config.num_heads // size * head, shard.kv_heads(config)
            kv = (kv_heads * head, 0, kv_first * head, config.num_kv_heads * head)
            return [(q_rows, 0, rank * q_rows, q_rows * size, head), (*kv, head), kv]
        case "gate_up":
            rows = config.mlp_width // size
            return [(rows, 0, rank * rows, config.mlp_width)] * 2
        case "attn_out" | "down":
            columns = parameter.shape[1]
            return [(len(parameter), 1, rank * columns, columns * size)]
        case "head":
            return [(len(parameter), 0, rank * len(parameter), config.vocab_size)]
    return [(len(parameter), -1, 0, 0)]


def check_weights(directory: Path) -> None:
    """Check the headers of a model directory's weights.

    Raises: ValueError, one line, for a missing, unknown or mis-shaped parameter or an unreadable file.
    """
    with torch.device("meta"):
        decoder = PackedDecoder(read_config(directory))
    missing = weight_targets(decoder)
    for path, name, file in _parameters(directory):
        if name not in missing:
            raise ValueError(f"{path} holds {name}, which is not a parameter of a {decoder.config.family} model")
        shape, expected = file.get_slice(name).get_shape(), missing.pop(name).shape
        if shape != expected:
            raise ValueError(f"{path}: {name} is {shape}, its config.json requires {expected}")
    if missing:
        raise ValueError(f"{directory} lacks {len(missing)} parameters, the first is {min(missing)}")


def load(
    directory: Path, dtype: torch.dtype, device: torch.device | str, shard: Shard = WHOLE, reduce: Reduce = lambda x: x
) -> PackedDecoder:
    """Load a model directory, from one file or several, into this dtype and device.

    With a `shard`, keep only that rank's share; `reduce` then sums over the ranks.

    Returns: the decoder in evaluation mode, its parameters without gradients. Raises: ValueError as `check_weights`.
    """
    check_weights(directory)
    decoder = empty_decoder(read_config(directory), dtype, device, shard, reduce)
    targets = weight_targets(decoder)
    for _, name, file in _parameters(directory):
        targets[name].load(file.get_tensor(name))
    return decoder


def empty_decoder(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str,
    shard: Shard = WHOLE,
    reduce: Reduce = lambda x: x,
) -> PackedDecoder:
    """A decoder in evaluation mode, its parameters without gradients and not yet initialized."""
    with torch.device("meta"):
        decoder = PackedDecoder(config, shard, reduce)
    # `to_empty` would make torch import its compiler.
    empty = {name: torch.empty(p.shape, dtype=dtype, device=device) for name, p in decoder.named_parameters()}
    decoder.load_state_dict(empty, assign=True)
    return decoder.requires_grad_(requires_grad=False).eval()


def save(decoder: PackedDecoder, directory: Path, dtype: torch.dtype) -> None:
    """Write the weights to `model.safetensors`, under the published names. The caller writes config.json."""
    published = {
        name: target.published().to("cpu", dtype, copy=True).contiguous()
        for name, target in weight_targets(decoder).items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(published, directory / SINGLE_FILE, metadata={"format": "pt"})


def _parameters(directory: Path) -> Iterator[tuple[Path, str, Any]]:
    """The path, the parameter's name and the open file of each parameter in a model directory."""
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - a file, not a dict
                    yield path, name, file
        except (OSError, SafetensorError) as error:
            raise ValueError(f"cannot read the weights in {path}: {error}") from error


def _files(directory: Path) -> list[Path]:
    """The weight files: the shards that the index names, or the single file."""
    index = directory / INDEX_FILE
    if not index.exists():
        pickles = sorted(path.name for path in directory.glob("*.bin") if not (directory / SINGLE_FILE).exists())
        if pickles:
            raise ValueError(f"{directory} stores its weights as pickles ({pickles[0]}); only safetensors are loaded")
        return [directory / SINGLE_FILE]
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [directory / name for name in sorted(set(weight_map.values()))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} has no readable weight_map") from error
