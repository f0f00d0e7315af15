"""The cached keys and values themselves, on the model's device, by the entries that `pool` hands out."""

import os
import re
from pathlib import Path

import torch
from torch import Tensor

from services.worker.model.decoder import PackedDecoder

CPU_SHARE, CUDA_SHARE = 0.25, 0.85  # of the free memory; a CPU's is shared with everything else on the machine


class KvStore:
    """Preallocated. Shapes: keys and values [layers, entries + 1, K, D], rotated, with K heads of size D.

    The entry `padding_entry`, the last, takes what fills up a batch.
    """

    def __init__(self, decoder: PackedDecoder, entries: int) -> None:
        weight = decoder.head.weight
        self.padding_entry = entries
        shape = (decoder.config.num_layers, entries + 1, _kv_heads(decoder), decoder.config.head_dim)
        self._keys = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self._values = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self._keys[:, entries] = self._values[:, entries] = 0  # a number, since what is masked still enters a sum

    def write(self, layer: int, entries: Tensor, k: Tensor, v: Tensor) -> None:
        """Shapes: entries [T], k and v [T, K, D]."""
        self._keys[layer].index_copy_(0, entries, k)
        self._values[layer].index_copy_(0, entries, v)

    def read(self, layer: int, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes: entries [S] -> keys and values [S, K, D]."""
        return self._keys[layer].index_select(0, entries), self._values[layer].index_select(0, entries)


def bytes_per_token(decoder: PackedDecoder) -> int:
    """What one entry takes, keys and values in all layers."""
    config, itemsize = decoder.config, decoder.head.weight.dtype.itemsize
    return 2 * config.num_layers * _kv_heads(decoder) * config.head_dim * itemsize


def tokens_that_fit(decoder: PackedDecoder) -> int:
    """How many entries the free memory of the decoder's device has room for, leaving the rest of it to the forward."""
    device = decoder.head.weight.device
    if device.type == "cuda":
        torch.cuda.empty_cache()  # else what torch keeps of freed memory counts as taken
        free_bytes, share = torch.cuda.mem_get_info(device)[0], CUDA_SHARE
    else:
        free_bytes, share = _available_bytes(), CPU_SHARE
    return int(free_bytes * share) // bytes_per_token(decoder)


def _available_bytes() -> int:
    """Of the machine's memory: free, or holding what can be read from files again, such as the weights just loaded."""
    try:
        told = re.search(r"^MemAvailable: *(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # not Linux
        told = None
    return int(told[1]) << 10 if told else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kv_heads(decoder: PackedDecoder) -> int:
    """Those of this rank."""
    return decoder.shard.kv_heads(decoder.config)[1]
