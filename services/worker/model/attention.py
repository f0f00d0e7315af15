"""Bidirectional attention over packed requests of any lengths, without padding, fresh and cached keys together.

Back ends behind one function: flash-attn's variable-length kernel where it is installed and serves the device and the
dtype, else torch's own fused attention.
Shape letters: T fed tokens, S keys, H query heads, K key/value heads, D head size.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import ForwardBatch
from services.worker.model.decoder import Attend


def attention(batch: ForwardBatch, store: KvStore | None, device: torch.device, dtype: torch.dtype) -> Attend:
    """How this batch attends: recompute parts over what they feed, cache parts over their slots of the store.

    Everything fed is written to the store first, so the slots of a cache part hold its fresh keys, too.
    """
    write = torch.from_numpy(batch.write_entries).to(device)
    read = torch.from_numpy(batch.read_entries).to(device)
    mix = _flash(batch, store, read) if backend(device, dtype) == "flash-attn" else _fused(batch, store, read)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if store is not None and len(write):
            store.write(layer, write, k, v)
        return mix(layer, q, k, v)

    return attend


@cache
def backend(device: torch.device, dtype: torch.dtype) -> str:
    """flash-attn or torch. flash-attn computes in 16 bits only, on Ampere and later GPUs."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return "torch"
    recent = torch.cuda.get_device_capability(device) >= (8, 0)
    return "flash-attn" if recent and _flash_varlen() is not None else "torch"


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests next to each other with equal lengths: one call of the kernel."""

    count: int
    rows: slice  # theirs among the fed tokens
    keys: slice  # theirs among the fed tokens, or if cached among the keys read from the store
    cached: bool


def _fused(batch: ForwardBatch, store: KvStore | None, read: Tensor) -> Attend:
    groups = _groups(batch)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cached_k, cached_v = store.read(layer, read) if store is not None and len(read) else (k, v)
        mixed = [
            _mix(q[g.rows], cached_k[g.keys], cached_v[g.keys], g.count)
            if g.cached
            else _mix(q[g.rows], k[g.keys], v[g.keys], g.count)
            for g in groups
        ]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    return attend


def _mix(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Attention of `count` requests of equal lengths. Shapes: q [T, H, D], k and v [S, K, D] -> [T, H, D]."""
    # [n, H, T / n, D] and twice [n, K, S / n, D]
    q, k, v = (x.reshape(count, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    return mixed.transpose(1, 2).flatten(0, 1)


def _groups(batch: ForwardBatch) -> list[_Group]:
    """Runs of equal (cached or not, fed length, key length); a batch has its parts in such an order."""
    cached = np.arange(len(batch.lengths)) >= batch.num_recompute
    shapes = np.stack([cached, batch.lengths, batch.key_lengths])  # [3, N]
    firsts = np.flatnonzero(np.r_[True, (shapes[:, 1:] != shapes[:, :-1]).any(axis=0)])
    counts = np.diff(np.r_[firsts, len(batch.lengths)])
    groups, row, key = [], 0, 0
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        rows = slice(row, row + count * int(batch.lengths[first]))
        row = rows.stop
        if not cached[first]:
            groups.append(_Group(count, rows, rows, cached=False))
            continue
        keys = slice(key, key + count * int(batch.key_lengths[first]))
        key = keys.stop
        groups.append(_Group(count, rows, keys, cached=True))
    return groups


def _flash(batch: ForwardBatch, store: KvStore | None, read: Tensor) -> Attend:
    """One call for all: the keys of recompute parts, then those read from the store."""
    fresh = int(batch.lengths[: batch.num_recompute].sum())
    kernel = _flash_varlen()
    ends_q, ends_k = (_ends(lengths, read.device) for lengths in (batch.lengths, batch.key_lengths))
    longest_q, longest_k = int(batch.lengths.max()), int(batch.key_lengths.max())

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k[:fresh], v[:fresh]
        if store is not None and len(read):
            keys, values = store.read(layer, read)
            k, v = torch.cat((k, keys)), torch.cat((v, values))
        mixed: Tensor = kernel(q, k, v, ends_q, ends_k, longest_q, longest_k, causal=False)
        return mixed

    return attend


def _ends(lengths: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Where each request's rows begin, and where the last one's end: int32 [N + 1]."""
    return torch.from_numpy(np.r_[0, np.cumsum(lengths)].astype(np.int32)).to(device)


@cache
def _flash_varlen() -> Any:
    try:
        from flash_attn import flash_attn_varlen_func  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return flash_attn_varlen_func
