"""Loads and saves a decoder as safetensors, under the parameter names of the published checkpoints.

The decoder keeps query, key and value, and gate and up, as one matrix each; the files keep them apart. A `WeightTarget`
is one published parameter with its place in the decoder.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from services.worker.model.config import ModelConfig, read_config
from services.worker.model.decoder import WHOLE, PackedDecoder, Reduce, Shard

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class WeightTarget:
    """Rows [start, stop) of the decoder's parameter `name` hold the parameter `published` of the checkpoint: all of it,
    or one rank's share, which begins at `first` along `axis`."""

    published: str
    name: str
    start: int
    stop: int
    axis: int = -1  # -1: not split
    first: int = 0
    axis_length: int = 0  # of the published parameter, along `axis`

    def shape(self, rows: Tensor) -> list[int]:
        """The published parameter's shape."""
        shape = list(rows.shape)
        if self.axis >= 0:
            shape[self.axis] = self.axis_length
        return shape

    def share(self, published: Tensor, rows: Tensor) -> Tensor:
        """The part of the published tensor that belongs in these rows."""
        return published if self.axis < 0 else published.narrow(self.axis, self.first, rows.shape[self.axis])


@dataclass(frozen=True, slots=True)
class _Names:
    """One family's published names. Those in `inner` follow the prefix `layer` and the layer's index."""

    layer: str
    outer: dict[str, str]
    inner: dict[str, tuple[str, ...]]


_NAMES = {
    "llada": _Names(
        layer="model.transformer.blocks",
        outer={
            "embed": "model.transformer.wte",
            "norm": "model.transformer.ln_f",
            "head": "model.transformer.ff_out",
        },
        inner={
            "attn_norm": ("attn_norm",),
            "qkv": ("q_proj", "k_proj", "v_proj"),
            "attn_out": ("attn_out",),
            "mlp_norm": ("ff_norm",),
            "gate_up": ("ff_proj", "up_proj"),
            "down": ("ff_out",),
        },
    ),
    "dream": _Names(
        layer="model.layers",
        outer={"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
        inner={
            "attn_norm": ("input_layernorm",),
            "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "attn_out": ("self_attn.o_proj",),
            "mlp_norm": ("post_attention_layernorm",),
            "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
            "down": ("mlp.down_proj",),
        },
    ),
}


def weight_targets(decoder: PackedDecoder) -> Iterator[WeightTarget]:
    """Every published parameter, with its place in the decoder."""
    config, shard, names = decoder.config, decoder.shard, _NAMES[decoder.config.family]
    for name, parameter in decoder.named_parameters():
        module, _, kind = name.rpartition(".")
        if module in names.outer:
            split = (0, shard.rank * len(parameter), config.vocab_size) if module == "head" else (-1, 0, 0)
            yield WeightTarget(f"{names.outer[module]}.{kind}", name, 0, len(parameter), *split)
            continue
        _, index, inner = module.split(".")
        start = 0
        for part, rows, *split_rows in zip(names.inner[inner], *_split(inner, parameter, decoder), strict=True):
            yield WeightTarget(f"{names.layer}.{index}.{part}.{kind}", name, start, start + rows, *split_rows[0])
            start += rows


def _split(inner: str, parameter: Tensor, decoder: PackedDecoder) -> tuple[list[int], list[tuple[int, int, int]]]:
    """A layer's parameter: the number of rows of each published part, and its (axis, first, axis_length)."""
    config, shard = decoder.config, decoder.shard
    size, head = shard.size, config.head_dim
    if inner == "qkv":
        q_rows, (kv_first, kv_heads) = config.num_heads // size * head, shard.kv_heads(config)
        kv = (0, kv_first * head, config.num_kv_heads * head)
        return [q_rows, kv_heads * head, kv_heads * head], [(0, shard.rank * q_rows, q_rows * size), kv, kv]
    if inner == "gate_up":
        rows = config.mlp_width // size
        return [rows] * 2, [(0, shard.rank * rows, config.mlp_width)] * 2
    if inner in ("attn_out", "down"):
        columns = parameter.shape[1]
        return [len(parameter)], [(1, shard.rank * columns, columns * size)]
    return [len(parameter)], [(-1, 0, 0)]


def check_weights(directory: Path) -> None:
    """Check the headers of a model directory's weights.

    Raises: ValueError, one line, for a missing, unknown or mis-shaped parameter or an unreadable file.
    """
    with torch.device("meta"):
        decoder = PackedDecoder(read_config(directory))
    missing = {target.published: target.shape(rows) for target, rows in _target_rows(decoder)}
    for path in _files(directory):
        with _open_file(path) as file:
            for name in file.keys():  # noqa: SIM118 - a file, not a dict
                if name not in missing:
                    raise ValueError(
                        f"{path} holds {name}, which is not a parameter of a {decoder.config.family} model"
                    )
                shape, expected = file.get_slice(name).get_shape(), missing.pop(name)
                if shape != expected:
                    raise ValueError(f"{path}: {name} is {shape}, its config.json requires {expected}")
    if missing:
        raise ValueError(f"{directory} lacks {len(missing)} parameters, the first is {min(missing)}")


def load(
    directory: Path,
    dtype: torch.dtype,
    device: torch.device | str,
    shard: Shard = WHOLE,
    reduce: Reduce = lambda x: x,
) -> PackedDecoder:
    """Load a model directory, from one file or several, into this dtype and device.

    With a `shard`, keep only that rank's share; `reduce` then sums over the ranks.

    Returns: the decoder in evaluation mode, its parameters without gradients. Raises: ValueError as `check_weights`.
    """
    check_weights(directory)
    decoder = empty_decoder(read_config(directory), dtype, device, shard, reduce)
    targets = {target.published: (target, rows) for target, rows in _target_rows(decoder)}
    for path in _files(directory):
        with _open_file(path) as file:
            for name in file.keys():  # noqa: SIM118 - a file, not a dict
                target, rows = targets[name]
                rows.copy_(target.share(file.get_tensor(name), rows))
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
    published = {target.published: rows.detach().to("cpu", dtype, copy=True) for target, rows in _target_rows(decoder)}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(published, directory / SINGLE_FILE, metadata={"format": "pt"})


def _target_rows(decoder: PackedDecoder) -> Iterator[tuple[WeightTarget, Tensor]]:
    parameters = dict(decoder.named_parameters())
    for target in weight_targets(decoder):
        yield target, parameters[target.name][target.start : target.stop]


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


@contextmanager
def _open_file(path: Path) -> Iterator[Any]:
    """A file of weights, which reads one tensor at a time."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read the weights in {path}: {error}") from error
