"""Bidirectional attention over packed requests of any lengths, without padding, over fresh and cached keys.

The back end is flash-attn's variable-length kernel if it is installed and supports the device and the dtype, otherwise
torch's fused attention.
Shape letters: T fed tokens, S keys, H query heads, K key/value heads, D head size.
"""

from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import ForwardBatch
from services.worker.model.decoder import Attend


def attention(batch: ForwardBatch, store: KvStore | None, device: torch.device, dtype: torch.dtype) -> Attend:
    """The attention of this batch: recompute parts attend to the tokens they feed, cache parts to their cache entries.

    The fed tokens' keys and values are written to the store first, so the entries of a cache part include them.
    """
    write = torch.from_numpy(batch.write_entries).to(device)
    read = torch.from_numpy(batch.read_entries).to(device)
    use_flash = backend(device, dtype) == "flash-attn"
    attend_written = _flash(batch, store, read) if use_flash else _fused(batch, store, read)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if store is not None and len(write):
            store.write(layer, write, k, v)
        return attend_written(layer, q, k, v)

    return attend


@cache
def backend(device: torch.device, dtype: torch.dtype) -> str:
    """flash-attn or torch. flash-attn requires a 16-bit dtype and an Ampere or later GPU."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return "torch"
    recent = torch.cuda.get_device_capability(device) >= (8, 0)
    return "flash-attn" if recent and _flash_varlen() is not None else "torch"


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive requests of equal lengths: one call of the kernel."""

    count: int
    rows: slice  # of the fed tokens
    keys: slice  # of the keys read from the store if `cached`, else of the fed tokens
    cached: bool


def _fused(batch: ForwardBatch, store: KvStore | None, read: Tensor) -> Attend:
    groups = _groups(batch)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cached = store.read(layer, read) if store is not None and len(read) else (k, v)
        mixed = []
        for group in groups:
            keys, values = cached if group.cached else (k, v)
            mixed.append(attend_equal(q[group.rows], keys[group.keys], values[group.keys], group.count))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    return attend


def attend_equal(q: Tensor, k: Tensor, v: Tensor, count: int, mask: Tensor | None = None) -> Tensor:
    """Attention of `count` requests of equal lengths. Shapes: q [T, H, D], k and v [S, K, D] -> [T, H, D]."""
    # q [n, H, T / n, D]; k, v [n, K, S / n, D]
    q, k, v = (x.reshape(count, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return attended.transpose(1, 2).flatten(0, 1)


def _groups(batch: ForwardBatch) -> list[_Group]:
    """Group consecutive requests of equal (cached, fed length, key length); the batch is sorted by these."""
    cached = np.arange(len(batch.lengths)) >= batch.num_recompute
    groups, row, key = [], 0, 0
    for shape, equal in groupby(zip(cached.tolist(), batch.lengths.tolist(), batch.key_lengths.tolist(), strict=True)):
        is_cached, length, key_length = shape
        count = len(list(equal))
        rows = keys = slice(row, row := row + count * length)
        if is_cached:
            keys = slice(key, key := key + count * key_length)
        groups.append(_Group(count, rows, keys, is_cached))
    return groups


def _flash(batch: ForwardBatch, store: KvStore | None, read: Tensor) -> Attend:
    """One kernel call for all requests, over the keys of recompute parts and then those read from the store."""
    fresh = int(batch.lengths[: batch.num_recompute].sum())
    kernel = _flash_varlen()
    # [N + 1] each: the first row of each request, and the end of the last one's.
    ends = (np.r_[0, np.cumsum(lengths)].astype(np.int32) for lengths in (batch.lengths, batch.key_lengths))
    ends_q, ends_k = (torch.from_numpy(rows).to(read.device) for rows in ends)
    max_q, max_k = int(batch.lengths.max()), int(batch.key_lengths.max())

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k[:fresh], v[:fresh]
        if store is not None and len(read):
            keys, values = store.read(layer, read)
            k, v = torch.cat((k, keys)), torch.cat((v, values))
        mixed: Tensor = kernel(q, k, v, ends_q, ends_k, max_q, max_k, causal=False)
        return mixed

    return attend


@cache
def _flash_varlen() -> Any:
    try:
        from flash_attn import flash_attn_varlen_func  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return flash_attn_varlen_func
