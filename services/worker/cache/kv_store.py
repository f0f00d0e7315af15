"""The cached keys and values, on the model's device, by the entries that `kv_allocator` hands out."""

import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from services.worker.cache.kv_allocator import Move

CPU_SHARE, CUDA_SHARE = 0.25, 0.95  # of the free memory; all programs of a machine share a CPU's
MOVED_ENTRIES = 1024  # that one copy moves


class KvShape(NamedTuple):
    """The keys and values of a model, or of one rank's share of it."""

    layers: tuple[tuple[int, int], ...]  # of each layer: the rows of an entry (heads of keys and of values), their size
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """The size of one entry: keys and values in all layers."""
        return sum(rows * size for rows, size in self.layers) * self.dtype.itemsize


class KvStore:
    """Preallocated keys (rotated) and values, side by side: of each layer [entries + 1, 2 K, D], K heads of size D.

    The last entry, `padding_entry`, is for the padding of a batch.
    """

    def __init__(self, shape: KvShape, entries: int) -> None:
        self.padding_entry = entries
        new = partial(torch.empty, dtype=shape.dtype, device=shape.device)
        self._layers: list[Tensor] = [new((entries + 1, *sizes)) for sizes in shape.layers]
        for layer in self._layers:
            layer[entries] = 0
        self._moving: dict[tuple[int, ...], Tensor] = {sizes: new((MOVED_ENTRIES, *sizes)) for sizes in {*shape.layers}}

    def write(self, layer: int, entries: Tensor, kv: Tensor) -> Tensor:
        """Returns: all keys and values of the layer. Shapes: entries [T], kv [T, 2 K, D] -> [entries + 1, 2 K, D]."""
        return self._layers[layer].index_copy_(0, entries, kv)

    def read(self, layer: int, entries: Tensor) -> Tensor:
        """Shapes: entries [T] -> [T, 2 K, D]."""
        return self._layers[layer].index_select(0, entries)

    def move(self, moves: Iterable[Move]) -> None:
        """Copy regions to other entries, in this order. A region may overlap its target, which lies before it, so each
        copy has a buffer. It needs no further memory: a copy that failed half-way could not be repeated."""
        for source, target, length in moves:
            for layer in self._layers:
                moving = self._moving[layer.shape[1:]]
                for first in range(0, length, len(moving)):
                    part = moving[: length - first]
                    part.copy_(layer[source + first : source + first + len(part)])
                    layer[target + first : target + first + len(part)] = part


def tokens_that_fit(shape: KvShape, forward_bytes: int = 0, ranks: int = 1) -> int:
    """The number of entries that fit into a share of the device's free memory, beside the largest forward. The `ranks`
    of an instance on a CPU share the machine's memory."""
    if shape.device.type == "cuda":
        torch.cuda.empty_cache()  # otherwise memory that torch has freed but not returned counts as used
        free_bytes, share = torch.cuda.mem_get_info(shape.device)[0], CUDA_SHARE
    else:
        free_bytes, share = _available_bytes(), CPU_SHARE / ranks
    return max(0, int(free_bytes * share) - forward_bytes) // shape.bytes_per_token


def _available_bytes() -> int:
    """The machine's available memory, including the page cache, which holds the weights just loaded."""
    try:
        match = re.search(r"^MemAvailable: *(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # not Linux
        match = None
    return int(match[1]) << 10 if match else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
