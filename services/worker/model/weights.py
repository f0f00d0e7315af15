"""Loads and saves a decoder as safetensors, under the parameter names of the published checkpoints.

The decoder keeps query, key and value, gate and up, and an expert's matrices of all experts as one parameter each; most
files keep them apart. A `WeightTarget` is a published parameter, or a part of it, with its place in the decoder.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from services.worker.model.canvas_decoder import CanvasDecoder
from services.worker.model.decoder import WHOLE, PackedDecoder, Reduce, Shard
from services.worker.model.families import FAMILIES, ModelConfig, read_config
from services.worker.model.families.config import AttentionShape
from shared.errors import BadInput
from shared.model_files import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DERIVED = ".rotary_emb.inv_freq"  # some files store it; it follows from the configuration
DTYPES = ("BF16", "F16", "F32", "F64")
OF_IMAGES = (".vision_tower.", ".embed_vision.")  # not needed for texts
QUANTIZED = re.compile(r"qweight|qzeros|scale|absmax|quant")  # in the names of other parameters of such weights
TIED_ROWS = 4096  # compared at once


@dataclass(frozen=True, slots=True)
class WeightTarget:
    """The decoder's rows that hold a published parameter, or a part of it."""

    rows: Tensor
    shape: tuple[int, ...]  # of the published parameter
    start: tuple[int, ...]  # where the part begins in it, along each axis
    # Returns the row here of each published one, int64; None: the same order. It is not called to check a checkpoint.
    order: Callable[[], Tensor] | None = None

    @property
    def part(self) -> tuple[slice, ...]:
        """The part of the published parameter."""
        return tuple(slice(first, first + length) for first, length in zip(self.start, self.rows.shape, strict=True))

    def load(self, published: Any) -> None:
        """Copy the part from the published parameter: a tensor, or a file's slice."""
        part = published[self.part]
        if self.order is None:
            self.rows.copy_(part)
        else:
            self.rows.index_copy_(0, self.order().to(self.rows.device), part.to(self.rows.device, self.rows.dtype))

    def save(self, published: Tensor) -> None:
        """Copy the rows into the published parameter."""
        rows = self.rows.cpu()
        published[self.part] = rows if self.order is None else rows[self.order()]


def new_decoder(config: ModelConfig, shard: Shard = WHOLE, reduce: Reduce = lambda x: x) -> PackedDecoder:
    """The decoder of a model's family, or one rank's share of it."""
    return (CanvasDecoder if config.canvas else PackedDecoder)(config, shard, reduce)


def weight_targets(decoder: PackedDecoder) -> dict[str, list[WeightTarget]]:
    """The places in the decoder of every published parameter, by its published name."""
    family, targets = FAMILIES[decoder.config.family], defaultdict[str, list[WeightTarget]](list)
    for name, parameter in decoder.named_parameters():
        module, _, kind = name.rpartition(".")
        rows = parameter.detach()
        if module in family.outer_names:
            is_split = module == "head"
            targets[f"{family.outer_names[module]}.{kind}"].append(
                _split(rows, 0, decoder.first_token, decoder.config.vocab_size) if is_split else _whole(rows)
            )
            continue
        _, index, own = name.split(".", 2)
        if own in family.layer_names:
            published = [part.replace("{layer}", index) for part in family.layer_names[own]]
        else:
            module = own.removesuffix(f".{kind}")
            published = [f"{family.layer_prefix}.{index}.{part}.{kind}" for part in family.layer_names[module]]
        for part, target in _layer_targets(own, int(index), rows, published, decoder):
            targets[part].append(target)
    return dict(targets)


def _layer_targets(
    own: str, layer: int, rows: Tensor, published: list[str], decoder: PackedDecoder
) -> Iterator[tuple[str, WeightTarget]]:
    """The published names and places of one parameter of a layer, whose name within the layer is `own`."""
    shape, rank, size = decoder.config.attention(layer), decoder.shard.rank, decoder.shard.size
    match own.rpartition(".")[0].removeprefix("mlp."):
        case "qkv":
            yield from _qkv_targets(rows, published, decoder, shape)
        case "q_norm" | "k_norm":
            yield published[0], WeightTarget(rows, tuple(rows.shape), (0,), partial(_pair_order, 1, shape))
        case "gate_up" | "shared.gate_up":
            for part, half in zip(published, rows.chunk(2), strict=True):
                yield part, _split(half, 0, rank * len(half), size * len(half))
        case "attn_out" | "down" | "shared.down":
            columns = rows.shape[1]
            yield published[0], _split(rows, 1, rank * columns, size * columns)
        case "experts.gate_up" | "experts.down":
            for index, matrix in enumerate(rows, rank * len(rows)):
                for part, half in zip(published, matrix.chunk(len(published)), strict=True):
                    yield part.format(index), _whole(half)
        case "moe.experts.gate_up" | "moe.experts.down":
            yield published[0], _split(rows, 0, rank * len(rows), size * len(rows))
        case _:
            yield published[0], _whole(rows)


def _qkv_targets(
    rows: Tensor, published: list[str], decoder: PackedDecoder, shape: AttentionShape
) -> Iterator[tuple[str, WeightTarget]]:
    """Query, key and value: published as three parameters, or as one with all rows of the query first. The value may be
    the key, whose parameter then has two places."""
    config, shard, head = decoder.config, decoder.shard, shape.head_dim
    first_kv, kv_heads = shard.kv_heads(shape)
    q_heads = config.num_heads // shard.size
    if shape.keys_are_values:
        published = [*published[:2], published[1]]
    parts = [  # heads here, the first of them, heads in all, whether they are rotated
        (q_heads, shard.rank * q_heads, config.num_heads, True),
        (kv_heads, first_kv, shape.num_kv_heads, True),
        (kv_heads, first_kv, shape.num_kv_heads, False),
    ]
    all_heads, before, start = sum(part[2] for part in parts), 0, 0
    for index, (heads, first, total, is_rotated) in enumerate(parts):
        is_one = len(published) == 1
        name, offset, length = (published[0], before, all_heads) if is_one else (published[index], 0, total)
        own = rows[start : start + heads * head]
        order = partial(_pair_order, heads, shape) if is_rotated else None
        yield name, _split(own, 0, (offset + first) * head, length * head, order)
        before, start = before + total, start + heads * head


def _whole(rows: Tensor) -> WeightTarget:
    return WeightTarget(rows, tuple(rows.shape), (0,) * rows.ndim)


def _split(rows: Tensor, axis: int, first: int, length: int, order: Callable[[], Tensor] | None = None) -> WeightTarget:
    """The published parameter has this length along `axis`; the part begins at `first`."""
    shape, start = list(rows.shape), [0] * rows.ndim
    shape[axis], start[axis] = length, first
    return WeightTarget(rows, tuple(shape), tuple(start), order)


def _pair_order(heads: int, shape: AttentionShape) -> Tensor:
    """The row here of each published row of these heads. Published, the two of a rotated pair are half of `rope_span`
    apart; here they are neighbours, as `rotate_` expects, and before the dimensions that are not rotated."""
    half, pairs = shape.rope_span // 2, shape.rotary_dim // 2
    dimension = torch.arange(shape.head_dim, device="cpu")
    is_rotated = (dimension < shape.rope_span) & (dimension % half < pairs)
    order = torch.where(is_rotated, 2 * (dimension % half) + dimension // half, 0)
    order[~is_rotated] = torch.arange(shape.rotary_dim, shape.head_dim, device="cpu")
    starts = torch.arange(heads, device="cpu") * shape.head_dim
    return (starts.unsqueeze(1) + order).flatten()


def check_weights(directory: Path) -> None:
    """Check the headers of a model directory's weights.

    Raises: BadInput, one line, for a missing, unknown or mis-shaped parameter or an unreadable file.
    """
    with torch.device("meta"):
        decoder = new_decoder(read_config(directory))
    missing, family = weight_targets(decoder), FAMILIES[decoder.config.family]
    tied = {f"{family.outer_names[part]}.weight": part for part in ("embed", "head") if decoder.head is None}
    places, found = dict[str, Path](), set[str]()
    for path, name, file in _parameters(directory):
        if name in tied:
            places[tied[name]] = path
        if name.endswith(DERIVED) or tied.get(name) == "head" or any(part in name for part in OF_IMAGES):
            continue
        if name not in missing:
            why = "twice" if name in found else f"which is not a parameter of a {decoder.config.family} model"
            hint = "; quantized weights are not supported" if QUANTIZED.search(name) else ""
            raise BadInput(f"{path} holds {name}, {why}{hint}", "model")
        found.add(name)
        part, expected = file.get_slice(name), list(missing.pop(name)[0].shape)
        shape, dtype = part.get_shape(), part.get_dtype()
        if dtype not in DTYPES:
            raise BadInput(
                f"{path}: {name} is {dtype}; quantized weights are not supported, only {', '.join(DTYPES)}", "model"
            )
        if shape != expected:
            raise BadInput(f"{path}: {name} is {shape}, its config.json requires {expected}", "model")
    if missing:
        raise BadInput(f"{directory} lacks {len(missing)} parameters, the first is {min(missing)}", "model")
    if "head" in places and not _are_equal(places, {part: name for name, part in tied.items()}):
        raise BadInput(
            f"{places['head']}: the head differs from the embedding, to which its config.json ties it", "model"
        )


def _are_equal(places: Mapping[str, Path], names: Mapping[str, str]) -> bool:
    """Whether embedding and head have the same values, read in parts of a few thousand rows."""
    with (
        safe_open(places["embed"], framework="pt") as embed_file,
        safe_open(places["head"], framework="pt") as head_file,
    ):
        embed, head = embed_file.get_slice(names["embed"]), head_file.get_slice(names["head"])
        shape = embed.get_shape()
        starts = range(0, shape[0], TIED_ROWS)
        return bool(
            head.get_shape() == shape
            and all(torch.equal(embed[at : at + TIED_ROWS], head[at : at + TIED_ROWS]) for at in starts)
        )


def load(
    directory: Path, dtype: torch.dtype, device: torch.device | str, shard: Shard = WHOLE, reduce: Reduce = lambda x: x
) -> PackedDecoder:
    """Load a model directory, from one file or several, into this dtype and device.

    With a `shard`, read only that rank's share; `reduce` then sums over the ranks. The files are mapped one after
    another and copied from there, so that the most memory in use is the decoder and one file.

    Returns: the decoder in evaluation mode, its parameters without gradients. Raises: BadInput as `check_weights`.
    """
    check_weights(directory)
    decoder = empty_decoder(read_config(directory), dtype, device, shard, reduce)
    targets = weight_targets(decoder)
    for _, name, file in _parameters(directory):
        for target in targets.get(name, ()):  # none: an expert of another rank
            target.load(file.get_slice(name))
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
        decoder = new_decoder(config, shard, reduce)
    # `to_empty` would make torch import its compiler.
    empty = {
        name: torch.empty(p.shape, dtype=torch.float32 if ".router." in name else dtype, device=device)
        for name, p in decoder.named_parameters()
    }
    decoder.load_state_dict(empty, assign=True)
    return decoder.requires_grad_(requires_grad=False).eval()


def save(decoder: PackedDecoder, directory: Path, dtype: torch.dtype) -> None:
    """Write the weights to `model.safetensors`, under the published names. The caller writes config.json."""
    published = {}
    for name, targets in weight_targets(decoder).items():
        published[name] = torch.empty(targets[0].shape, dtype=dtype)
        for target in targets:
            target.save(published[name])
    directory.mkdir(parents=True, exist_ok=True)
    save_file(published, directory / SINGLE_FILE, metadata={"format": "pt"})


def _parameters(directory: Path) -> Iterator[tuple[Path, str, Any]]:
    """The path, the parameter's name and the open file of each parameter in a model directory."""
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.offset_keys():  # from the file's start to its end
                    yield path, name, file
        except (OSError, SafetensorError) as error:
            raise BadInput(f"cannot read the weights in {path}: {error}", "model") from error


def _files(directory: Path) -> list[Path]:
    """The weight files: the single file, or the shards that the index names."""
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.exists():  # also beside an index, as transformers reads them
        return [single]
    if not index.exists():
        if shards := sorted(path.name for path in directory.glob("*.safetensors")):
            raise BadInput(
                f"{directory} lacks {INDEX_FILE}, which names the parameters of {', '.join(shards)}", "model"
            )
        raise BadInput(f"{directory} has no {SINGLE_FILE}; only safetensors are loaded, not pickles or GGUF", "model")
    try:
        return [directory / name for name in sorted(set(read_json(index)["weight_map"].values()))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{index} has no readable weight_map", "model") from error
