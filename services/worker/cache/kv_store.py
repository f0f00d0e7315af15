"""The cached keys and values, on the model's device, by the entries that `kv_allocator` hands out."""

import os
import re
from pathlib import Path

import torch
from torch import Tensor

from services.worker.model.decoder import PackedDecoder

CPU_SHARE, CUDA_SHARE = 0.25, 0.85  # of the free memory; all programs of a machine share a CPU's


class KvStore:
    """Preallocated keys (rotated) and values. Shapes: each [layers, entries + 1, K, D], with K heads of size D.

    The last entry, `padding_entry`, is for the padding of a batch.
    """

    def __init__(self, decoder: PackedDecoder, entries: int) -> None:
        weight = decoder.head.weight
        self.padding_entry = entries
        shape = (decoder.config.num_layers, entries + 1, _kv_heads(decoder), decoder.config.head_dim)
        self._keys = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self._values = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self._keys[:, entries] = self._values[:, entries] = 0  # not NaN: masked values still enter a sum

    def write(self, layer: int, entries: Tensor, k: Tensor, v: Tensor) -> None:
        """Shapes: entries [T], k and v [T, K, D]."""
        self._keys[layer].index_copy_(0, entries, k)
        self._values[layer].index_copy_(0, entries, v)

    def read(self, layer: int, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes: entries [S] -> keys and values [S, K, D]."""
        return self._keys[layer].index_select(0, entries), self._values[layer].index_select(0, entries)


def bytes_per_token(decoder: PackedDecoder) -> int:
    """The size of one entry: keys and values in all layers."""
    config, itemsize = decoder.config, decoder.head.weight.dtype.itemsize
    return 2 * config.num_layers * _kv_heads(decoder) * config.head_dim * itemsize


def tokens_that_fit(decoder: PackedDecoder) -> int:
    """The number of entries that fit into a share of the device's free memory; the forward needs the rest."""
    device = decoder.head.weight.device
    if device.type == "cuda":
        torch.cuda.empty_cache()  # otherwise memory that torch has freed but not returned counts as used
        free_bytes, share = torch.cuda.mem_get_info(device)[0], CUDA_SHARE
    else:
        free_bytes, share = _available_bytes(), CPU_SHARE
    return int(free_bytes * share) // bytes_per_token(decoder)


def _available_bytes() -> int:
    """The machine's available memory, including the page cache, which holds the weights just loaded."""
    try:
        match = re.search(r"^MemAvailable: *(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # not Linux
        match = None
    return int(match[1]) << 10 if match else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kv_heads(decoder: PackedDecoder) -> int:
    """The number of key/value heads on this rank."""
    return decoder.shard.kv_heads(decoder.config)[1]
