"""Bidirectional attention over packed requests of any lengths, without padding, over keys where they lie in the cache.

The kernel is torch's variable-length one, or flash-attn's. Elsewhere (on a CPU, and in float32) a function of the same
signature computes the same from torch's fused attention.
Shape letters: T fed tokens, S keys, N requests, H query heads, K key/value heads, D head size.
"""

from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from services.worker.cache.kv_store import KvStore
from services.worker.model.decoder import Attend
from services.worker.model.forward_inputs import ForwardInputs


class Kernel(Protocol):
    """Attention of each request's fed tokens to keys of its own.

    Request i has the rows [cu_seq_q[i], cu_seq_q[i + 1]) of q, and the rows [cu_seq_k[i], cu_seq_k[i] + seqused_k[i])
    of k and v. Shapes: q [T, H, D], k and v [S, K, D], cu_seq_q and cu_seq_k int32 [N + 1], seqused_k int32 [N] ->
    [T, H, D].
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        seqused_k: Tensor,
    ) -> Tensor: ...


def attention(inputs: ForwardInputs, store: KvStore | None, kernel: Kernel) -> Attend:
    """The attention of one batch. The fed tokens' keys and values are written to the store first; without cache entries
    for them, the requests attend to the fed tokens alone."""
    is_cached = store is not None and len(inputs.write_entries) > 0

    def attend(layer: int, q: Tensor, kv: Tensor) -> Tensor:
        if is_cached:
            assert store is not None
            kv = store.write(layer, inputs.write_entries, kv)
        k, v = kv.chunk(2, dim=1)
        spans = inputs.cu_seq_q, inputs.cu_seq_k, inputs.max_q, inputs.max_k
        return kernel(q, k, v, *spans, seqused_k=inputs.seqused_k)

    return attend


@cache
def kernel_name(setting: str, device: torch.device, dtype: torch.dtype) -> str:
    """The kernel for a setting: torch, flash-attn or fallback. The first two need 16 bits and an Ampere or later GPU.

    Raises: ValueError, one line, if the setting names a kernel that cannot run here.
    """
    can_run = device.type == "meta" or (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
    if setting == "auto":
        return "torch" if can_run else "fallback"
    if setting != "fallback" and not can_run:
        raise ValueError(f"attention {setting!r} needs bfloat16 and an Ampere or later GPU; use auto")
    if setting == "flash-attn" and _flash_forward() is None:
        raise ValueError("attention 'flash-attn': the package is not installed; use auto")
    return setting


def kernel_of(name: str) -> Kernel:
    """The kernel of a name that `kernel_name` returned."""
    return {"torch": varlen, "flash-attn": flash, "fallback": fallback}[name]


def varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *, seqused_k: Tensor
) -> Tensor:
    """torch's kernel. One split of the keys: a request gets the same result in any batch."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - its import takes time, and is needed on CUDA only

    grouped = q.shape[1] != k.shape[1]
    mixed = varlen_attn(
        q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, enable_gqa=grouped, seqused_k=seqused_k, num_splits=1
    )
    assert isinstance(mixed, Tensor)
    return mixed


def flash(
    q: Tensor, k: Tensor, v: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *, seqused_k: Tensor
) -> Tensor:
    """flash-attn's kernel."""
    mixed: Tensor = _flash_forward()(
        q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, 0.0, q.shape[-1] ** -0.5, causal=False, seqused_k=seqused_k
    )[0]
    return mixed


def fallback(
    q: Tensor, k: Tensor, v: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *, seqused_k: Tensor
) -> Tensor:
    """torch's fused attention, one call for consecutive requests of equal lengths whose keys lie at equal distances.

    Raises: ValueError for what the kernels refuse.
    """
    _check(q, k, v, cu_seq_q, cu_seq_k, seqused_k)
    row_ends, starts, lengths = cu_seq_q.tolist(), cu_seq_k.tolist(), seqused_k.tolist()
    if max(lengths) > max_k or max(end - first for first, end in pairwise(row_ends)) > max_q:
        raise ValueError("a request is longer than max_q or max_k")
    mixed = []
    for first, count in _even_groups(row_ends, starts, lengths):
        rows = q[row_ends[first] : row_ends[first + count]]
        distance = starts[first + 1] - starts[first] if count > 1 else lengths[first]
        keys, values = (_regions(x, starts[first], lengths[first], count, distance) for x in (k, v))
        mixed.append(_attend_equal(rows, keys, values))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _even_groups(row_ends: list[int], starts: list[int], lengths: list[int]) -> list[tuple[int, int]]:
    """Consecutive requests of equal (fed, key) lengths and distances of their regions: the first and the number."""
    shapes = [(end - first, length) for (first, end), length in zip(pairwise(row_ends), lengths, strict=True)]
    distances = [after - start for start, after in pairwise(starts)]
    groups: list[tuple[int, int]] = []
    first = 0
    while first < len(lengths):
        end = first + 1
        while (
            end < len(lengths)
            and shapes[end] == shapes[first]
            and distances[end - 1] == distances[first] >= lengths[first]
        ):
            end += 1
        groups.append((first, end - first))
        first = end
    return groups


def _regions(x: Tensor, start: int, length: int, count: int, distance: int) -> Tensor:
    """Regions at equal distances, as a view. Shapes: x [S, K, D] -> [count, length, K, D]."""
    row, head, each = x.stride()
    return x.as_strided(
        (count, length, *x.shape[1:]), (distance * row, row, head, each), x.storage_offset() + start * row
    )


def _attend_equal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Shapes: q [n * L, H, D], k and v [n, S, K, D] -> [n * L, H, D]."""
    q, k, v = (x.transpose(1, 2) for x in (q.view(len(k), -1, *q.shape[1:]), k, v))
    attended = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    return attended.transpose(1, 2).flatten(0, 1)


def _check(q: Tensor, k: Tensor, v: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, seqused_k: Tensor) -> None:
    if not cu_seq_q.dtype == cu_seq_k.dtype == seqused_k.dtype == torch.int32:
        raise ValueError("positions and lengths must be int32")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError("q, k and v must have one dtype")
    if q.shape[1] % k.shape[1] or k.shape != v.shape:
        raise ValueError(f"{q.shape[1]} query heads do not share {k.shape[1]} key/value heads")
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        raise ValueError("the elements of a head must lie side by side")


@cache
def _flash_forward() -> Any:
    """flash-attn's forward, which takes `seqused_k`; None if it is not installed."""
    try:
        from flash_attn.flash_attn_interface import _flash_attn_varlen_forward  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return _flash_attn_varlen_forward
