"""Bidirectional attention over packed requests of any lengths, without padding, over keys where they lie in the cache.

The kernel is torch's variable-length one, or flash-attn's. Elsewhere (on a CPU, and in float32) a function of the same
signature computes the same from torch's fused attention.
Shape letters: T fed tokens, S keys, N requests, H query heads, K key/value heads, D head size.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from services.worker.cache.kv_store import KvStore
from services.worker.model.decoder import Attend
from services.worker.model.forward_batch import ForwardInputs


class RequestSpans(NamedTuple):
    """Of request i the fed tokens, rows [cu_seq_q[i], cu_seq_q[i + 1]), and the keys, rows [cu_seq_k[i], cu_seq_k[i] +
    seqused_k[i])."""

    cu_seq_q: Tensor  # int32 [N + 1]
    cu_seq_k: Tensor  # int32 [N + 1]
    max_q: int  # the largest number of fed tokens
    max_k: int  # and of keys
    seqused_k: Tensor  # int32 [N]


Kernel = Callable[[Tensor, Tensor, Tensor, RequestSpans], Tensor]
"""Attention of each request's fed tokens to keys of its own. Shapes: q [T, H, D], k and v [S, K, D] -> [T, H, D]."""


def attention(inputs: ForwardInputs, store: KvStore | None, kernel: Kernel) -> Attend:
    """The attention of one batch. The fed tokens' keys and values are written to the store first; without cache entries
    for them, the requests attend to the fed tokens alone."""
    store = store if len(inputs.write_entries) else None
    spans = RequestSpans(inputs.cu_seq_q, inputs.cu_seq_k, inputs.max_q, inputs.max_k, inputs.seqused_k)
    groups = _groups(spans) if kernel is fallback else []

    def attend(layer: int, q: Tensor, kv: Tensor, rows: Tensor | None = None) -> Tensor:
        if store is not None:
            kv = store.write(layer, inputs.write_entries, kv)
        k, v = kv.chunk(2, dim=1)
        if len(groups) > 1 and rows is not None and rows.device.type == "cpu":  # the rows are read on the host
            return _attend_rows(q, k, v, groups, rows)
        mixed = _attend_groups(q, k, v, groups) if groups else kernel(q, k, v, spans)
        return mixed if rows is None else mixed[rows]

    return attend


@cache
def kernel_name(setting: str, device: torch.device, dtype: torch.dtype, *, has_text_spans: bool = False) -> str:
    """The kernel for a setting: torch, flash-attn or fallback. The first two need 16 bits and an Ampere or later GPU;
    `auto` is flash-attn where it is installed, but not for models with spans of text.

    Raises: ValueError, one line, if the setting names a kernel that cannot run here.
    """
    can_run = device.type == "meta" or (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
    if setting == "auto":
        return "fallback" if not can_run else "torch" if has_text_spans or _flash_attn() is None else "flash-attn"
    if setting != "fallback" and not can_run:
        raise ValueError(f"attention {setting!r} needs bfloat16 and an Ampere or later GPU; use auto")
    if setting == "flash-attn" and has_text_spans:
        raise ValueError("attention 'flash-attn' does not serve models whose text attends to earlier tokens; use auto")
    if setting == "flash-attn" and _flash_attn() is None:
        raise ValueError("attention 'flash-attn': the package is not installed; use auto")
    return setting


def kernel_of(name: str) -> Kernel:
    """The kernel of a name that `kernel_name` returned."""
    return {"torch": varlen, "flash-attn": flash, "fallback": fallback}[name]


def varlen(q: Tensor, k: Tensor, v: Tensor, spans: RequestSpans) -> Tensor:
    """torch's kernel. One split of the keys: a request gets the same result in any batch."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - its import takes time, and is needed on CUDA only

    grouped = q.shape[1] != k.shape[1]
    mixed = varlen_attn(
        q, k, v, spans.cu_seq_q, spans.cu_seq_k, spans.max_q, spans.max_k, enable_gqa=grouped,
        seqused_k=spans.seqused_k, num_splits=1,
    )  # fmt: skip
    assert isinstance(mixed, Tensor)
    return mixed


def flash(q: Tensor, k: Tensor, v: Tensor, spans: RequestSpans) -> Tensor:
    """flash-attn's kernel. It reads all keys between two bounds, so each gap between two regions of keys is a sequence
    of its own, without queries."""
    starts = spans.cu_seq_k[:-1]
    ends = torch.stack([starts, starts + spans.seqused_k], dim=1).flatten()
    rows = torch.stack([spans.cu_seq_q[:-1], spans.cu_seq_q[1:]], dim=1).flatten()
    longest = max(spans.max_q, 2)  # with 1 it expects one query of each sequence
    mixed: Tensor = _flash_attn()(q, k, v, rows, ends, longest, spans.max_k)
    return mixed


def fallback(q: Tensor, k: Tensor, v: Tensor, spans: RequestSpans) -> Tensor:
    """torch's fused attention, one call for consecutive requests of equal lengths whose keys lie at equal distances."""
    return _attend_groups(q, k, v, _groups(spans))


class Group(NamedTuple):
    """Consecutive requests of equal (fed, key) lengths, whose keys lie at equal distances."""

    rows: slice  # of the fed tokens
    start: int  # the first one's first key
    length: int  # keys of each
    size: int  # number of requests
    distance: int


def _groups(spans: RequestSpans) -> list[Group]:
    """Raises: ValueError if a request is longer than `max_q` or `max_k`."""
    row_ends, starts, lengths = spans.cu_seq_q.tolist(), spans.cu_seq_k.tolist(), spans.seqused_k.tolist()
    fed = [end - first for first, end in pairwise(row_ends)]
    if max(lengths) > spans.max_k or max(fed) > spans.max_q:
        raise ValueError("a request is longer than max_q or max_k")
    shapes = list(zip(fed, lengths, strict=True))
    distances = [after - start for start, after in pairwise(starts)]
    groups: list[Group] = []
    first = 0
    while first < len(lengths):
        end = first + 1
        while (
            end < len(lengths)
            and shapes[end] == shapes[first]
            and distances[end - 1] == distances[first] >= lengths[first]
        ):
            end += 1
        distance = distances[first] if end - first > 1 else lengths[first]
        rows = slice(row_ends[first], row_ends[end])
        groups.append(Group(rows, starts[first], lengths[first], end - first, distance))
        first = end
    return groups


def _attend_groups(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[Group]) -> Tensor:
    """The rows of these groups, one behind the other. Shapes: q [T, H, D], k and v [S, K, D] -> [n, H, D]."""
    mixed = []
    for group in groups:
        keys, values = (_regions(x, group.start, group.length, group.size, group.distance) for x in (k, v))
        mixed.append(_attend_equal(q[group.rows], keys, values))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[Group], rows: Tensor) -> Tensor:
    """These rows, without the groups that have none of them, such as a prompt's blocks in the last layer.

    Shapes: q [T, H, D], k and v [S, K, D], rows [R] -> [R, H, D].
    """
    ends = np.array([group.rows.stop for group in groups])
    group_of = np.searchsorted(ends, rows.numpy(), side="right")  # [R]
    kept = np.zeros(len(groups), dtype=np.bool_)
    kept[group_of] = True
    lengths = np.diff(ends, prepend=0)
    removed = np.cumsum(np.where(kept, 0, lengths))  # rows of groups up to each one
    mixed = _attend_groups(q, k, v, [group for group, is_kept in zip(groups, kept, strict=True) if is_kept])
    return mixed[rows - torch.from_numpy(removed[group_of])]


def _regions(x: Tensor, start: int, length: int, count: int, distance: int) -> Tensor:
    """Regions at equal distances, as a view. Shapes: x [S, K, D] -> [count, K, length, D]."""
    row, head, each = x.stride()
    shape = count, x.shape[1], length, x.shape[2]
    return x.as_strided(shape, (distance * row, head, row, each), x.storage_offset() + start * row)


def _attend_equal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Shapes: q [n * L, H, D], k and v [n, K, S, D] -> [n * L, H, D]."""
    q = q.view(len(k), -1, *q.shape[1:]).transpose(1, 2)
    attended = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    return attended.transpose(1, 2).flatten(0, 1)


@cache
def _flash_attn() -> Any:
    """flash-attn's public function for sequences of any lengths; None if the package is not installed."""
    try:
        from flash_attn import flash_attn_varlen_func  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return flash_attn_varlen_func
