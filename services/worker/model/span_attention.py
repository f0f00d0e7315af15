"""Attention of models with spans of text, over packed requests and keys where they lie in the cache.

Finished text attends to earlier tokens, in some layers to those of a window; a block (such as a canvas) to itself and
the text before it, as far as a window behind its begin reaches. The kernel is torch's variable-length one, for large
heads its memory-efficient one; where they cannot run (on a CPU, in float32) a function computes the same from torch's
fused attention.
Shape letters: T fed tokens, S keys, H query heads, K key/value heads, D head size.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from services.worker.cache.kv_store import KvStore
from services.worker.model.decoder import Attend
from services.worker.model.families import ModelConfig
from services.worker.model.forward_batch import ForwardBatch
from shared.arrays import Int64

MAX_KERNEL_HEAD = 256  # the largest head of torch's variable-length kernel
NO_MASK, CAUSAL = 0, 2  # of the memory-efficient kernel; causal: the last query attends up to the last key


class Spans(NamedTuple):
    """Adjacent spans of fed tokens for one call of a kernel; each attends to one range of keys. Shapes: N spans."""

    first: int  # row, among the fed tokens, of all these spans
    end: int
    max_q: int
    max_k: int
    cu_seq_q: Tensor  # int32 [N + 1], the first row of each, from `first` on
    cu_seq_k: Tensor  # int32 [N + 1], the first key of each
    seqused_k: Tensor  # int32 [N], the number of its keys
    # Keys before and after its own to which a token attends, -1: no limit. A span's tokens own the last of its keys
    window: tuple[int, int]
    bounds: list[tuple[int, int, int, int]]  # of each, on the host: first row, end, first key, number of keys


def windows_of(config: ModelConfig) -> list[int]:
    """The different windows of the layers."""
    return sorted({config.attention(layer).window for layer in range(config.num_layers)})


def span_arrays(batch: ForwardBatch, config: ModelConfig) -> list[NDArray[Any]]:
    """The arrays of all spans of a batch, in the order that `spans_of` reads."""
    arrays = list[NDArray[Any]]()
    for _, window, own in _groups(batch, config):
        skipped = _skipped(batch, window)[own]
        starts, lengths = batch.key_starts[own] + skipped, batch.key_lengths[own] - skipped
        arrays.append(np.r_[0, batch.lengths[own].cumsum()].astype(np.int32))
        arrays.append(np.r_[starts, starts[-1:] + lengths[-1:]].astype(np.int32))
        arrays.append(lengths.astype(np.int32))
    return arrays


def spans_of(batch: ForwardBatch, config: ModelConfig, sent: Iterator[Tensor]) -> dict[int, list[Spans]]:
    """The spans by the layers' windows. `sent`: the arrays of `span_arrays` on the device."""
    found: dict[int, list[Spans]] = {window: [] for window in windows_of(config)}
    for is_text, window, own in _groups(batch, config):
        first = int(batch.lengths[: own.start].sum())
        skipped, lengths = _skipped(batch, window)[own], batch.lengths[own]
        ends, keys = lengths.cumsum(), batch.key_lengths[own] - skipped
        parts = ends - lengths, ends, batch.key_starts[own] + skipped, keys
        bounds = list(zip(*(part.tolist() for part in parts), strict=True))
        limits = (window - 1 if window else -1, 0) if is_text else (-1, -1)
        sizes = first, first + int(lengths.sum()), int(lengths.max()), int(keys.max())
        found[window].append(Spans(*sizes, next(sent), next(sent), next(sent), limits, bounds))
    return found


def _groups(batch: ForwardBatch, config: ModelConfig) -> Iterator[tuple[bool, int, slice]]:
    """For each window the spans of finished text and those of blocks, if there are any."""
    text = batch.num_text_spans
    for window in windows_of(config):
        if text:
            yield True, window, slice(0, text)
        if text < len(batch.lengths):
            yield False, window, slice(text, len(batch.lengths))


def _skipped(batch: ForwardBatch, window: int) -> Int64:
    """The first keys of each span that the window of its first token does not reach."""
    if not window:
        return np.zeros_like(batch.lengths)
    skipped: Int64 = np.maximum(batch.key_lengths - batch.lengths - (window - 1), 0)
    return skipped


def span_attention(
    spans: dict[int, list[Spans]], entries: Tensor, store: KvStore | None, config: ModelConfig, kernel: str
) -> Attend:
    """The attention of one batch. The fed tokens' keys and values are written to these entries of the store first;
    without a store, the requests attend to the fed tokens alone. Of canvases, `rows` must be all of their rows, and
    only these attend."""
    store = store if len(entries) else None

    def attend(layer: int, q: Tensor, kv: Tensor, rows: Tensor | None = None) -> Tensor:
        if store is not None:
            kv = store.write(layer, entries, kv)
        k, v = kv.chunk(2, dim=1)
        shape = config.attention(layer)
        run = _fallback
        if kernel == "torch" and shape.head_dim <= MAX_KERNEL_HEAD:
            run = _varlen
        elif kernel == "torch" and not shape.window:
            run = _efficient
        scale = 1.0 if config.canvas else shape.head_dim**-0.5
        own = spans[shape.window] if rows is None or not config.canvas else spans[shape.window][-1:]
        first = own[0].first
        mixed = q.new_empty(own[-1].end - first, *q.shape[1:])
        for each in own:
            run(mixed[each.first - first : each.end - first], q[each.first : each.end], k, v, each, scale)
        return mixed if rows is None or config.canvas else mixed[rows]

    return attend


def _varlen(mixed: Tensor, q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float) -> None:
    """Shapes: mixed, which it writes, and q [T, H, D], k and v [S, K, D]; also of the other two."""
    from torch.nn.attention.varlen import varlen_attn_out  # noqa: PLC0415 - takes time, and is needed on CUDA only

    varlen_attn_out(
        mixed, q, k, v, spans.cu_seq_q, spans.cu_seq_k, spans.max_q, spans.max_k, scale=scale, window_size=spans.window,
        enable_gqa=q.shape[1] != k.shape[1], seqused_k=spans.seqused_k, num_splits=1,
    )  # fmt: skip


def _efficient(mixed: Tensor, q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float) -> None:
    """One call for each key head, whose query heads share it by a stride of 0: this kernel groups no queries. It has no
    windows either."""
    shared = q.shape[1] // k.shape[1]
    for head in range(k.shape[1]):
        own = slice(head * shared, (head + 1) * shared)
        keys, values = (x[None, :, head, None].expand(-1, -1, shared, -1) for x in (k, v))
        found = torch.ops.aten._efficient_attention_forward(
            q[None, :, own], keys, values, None, spans.cu_seq_q, spans.cu_seq_k, spans.max_q, spans.max_k, 0.0,
            CAUSAL if spans.window[1] == 0 else NO_MASK, scale=scale, seqlen_k=spans.seqused_k,
        )  # fmt: skip
        mixed[:, own] = found[0][0]


def _fallback(mixed: Tensor, q: Tensor, k: Tensor, v: Tensor, spans: Spans, scale: float) -> None:
    """Span by span, so that the result does not depend on the company. The query heads of a key head are rows of one
    head, which each of torch's kernels takes."""
    grouped = q.view(len(q), k.shape[1], -1, q.shape[2]).permute(1, 0, 2, 3)  # [K, T, H / K, D]
    shared = grouped.shape[2]
    for first, end, start, length in spans.bounds:
        query = grouped[:, first:end].flatten(1, 2).unsqueeze(0)
        keys, values = (x[start:][:length].transpose(0, 1).unsqueeze(0) for x in (k, v))
        mask = None
        if spans.window[1] == 0:
            mask = _mask(end - first, length, spans.window[0], q.device).repeat_interleave(shared, dim=0)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
        by_token = attended.view(len(grouped), -1, *grouped.shape[2:]).transpose(0, 1)  # [n, K, H / K, D]
        mixed[first:end].view(by_token.shape).copy_(by_token)


def _mask(fed: int, keys: int, before: int, device: torch.device) -> Tensor:
    """Whether each of the last `fed` of these keys attends to each key: bool [fed, keys]."""
    distance = torch.arange(keys - fed, keys, device=device).unsqueeze(1) - torch.arange(keys, device=device)
    return (distance >= 0) & ((distance <= before) | (before < 0))
