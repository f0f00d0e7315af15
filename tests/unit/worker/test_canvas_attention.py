"""The kernels of attention to canvases: by stand-ins of torch's two operators, as these run on CUDA only."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.model.canvas_attention import canvas_attention, span_arrays, spans_of
from services.worker.model.families import ModelConfig, parse_config
from services.worker.model.forward_batch import ForwardBatch
from tests.support.canvas_model import RULES, SIZES

CANVAS, HEADS = 16, 4


def config_of(head: int, kv_heads: int) -> ModelConfig:
    """Layers with a window, and with full attention of large heads."""
    text = SIZES | {"num_attention_heads": HEADS, "global_head_dim": head, "num_global_key_value_heads": kv_heads}
    published = {"architectures": ["DiffusionGemmaForBlockDiffusion"], "canvas_length": CANVAS, "text_config": text}
    return parse_config(published | {"generation": RULES, "eos_token_id": 1})


def attend_exactly(
    q: Tensor, k: Tensor, v: Tensor, bounds: Iterator[tuple[int, int, int, int]], window: tuple[int, int]
) -> Tensor:
    """The definition, span by span; a window ends at the last keys. Scores are not scaled."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    mixed = torch.zeros_like(q)
    for first, end, start, length in bounds:
        places = torch.arange(length - (end - first), length)[:, None] - torch.arange(length)
        is_seen = torch.ones_like(places, dtype=torch.bool)
        if window[1] == 0:
            is_seen = (places >= 0) & ((places <= window[0]) | (window[0] < 0))
        scores = torch.einsum("qhd,khd->hqk", q[first:end], k[start : start + length])
        shares = scores.masked_fill(~is_seen, -torch.inf).softmax(dim=-1)
        mixed[first:end] = torch.einsum("hqk,khd->qhd", shares, v[start : start + length])
    return mixed


def bounds_of(cu_seq_q: Tensor, cu_seq_k: Tensor, used: Tensor) -> Iterator[tuple[int, int, int, int]]:
    rows = pairwise(cu_seq_q.tolist())
    return ((*row, start, length) for row, start, length in zip(rows, cu_seq_k.tolist(), used.tolist(), strict=False))


def flash(out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
    """Of heads up to 256, with grouped queries and windows."""
    cu_seq_q, cu_seq_k, _, _, dropout, is_causal, _ = rest
    assert (dropout, options["scale"], options["num_splits"], q.shape[2] <= 256) == (0.0, 1.0, 1, True)
    window = (-1, 0) if is_causal else (options["window_size_left"], options["window_size_right"])
    out.copy_(attend_exactly(q, k, v, bounds_of(cu_seq_q, cu_seq_k, options["seqused_k"]), window))
    return q.new_zeros(0)


def efficient(q: Tensor, k: Tensor, v: Tensor, bias: None, *rest: Any, **options: Any) -> tuple[Any, ...]:
    """Of one batch, with as many keys' heads as queries'; mask 2 is causal from the last key on."""
    cu_seq_q, cu_seq_k, _, _, dropout, mask, *_ = rest
    assert (len(q), dropout, options["scale"], q.shape[2]) == (1, 0.0, 1.0, k.shape[2])
    window = {0: (-1, -1), 2: (-1, 0)}[mask]
    mixed = attend_exactly(q[0], k[0], v[0], bounds_of(cu_seq_q, cu_seq_k, options["seqlen_k"]), window)
    return mixed.unsqueeze(0), q.new_zeros(0), torch.zeros(0).long(), torch.zeros(0).long(), 0, 0


def batch_of(texts: list[int], contexts: list[int]) -> ForwardBatch:
    """Prompts that are read whole, then a canvas of each request, behind its text, in a region of its own."""
    lengths = np.array(texts + [CANVAS] * len(contexts))
    keys = np.array(texts + [context + CANVAS for context in contexts])
    starts = 100 * np.array([*range(len(texts)), *range(len(contexts))])
    tokens = np.zeros(lengths.sum(), dtype=np.int64)
    return ForwardBatch(
        tokens, tokens, lengths, starts, keys, np.full(len(contexts), CANVAS), num_text_spans=len(texts)
    )


@pytest.mark.parametrize(("head", "kv_heads"), [(32, 1), (264, 1), (264, 2), (264, 4)])
@pytest.mark.parametrize(("texts", "contexts"), [([], [21]), ([], [3, 40, 8]), ([5], [5]), ([21, 9], [21, 9, 30])])
def test_the_kernels_of_cuda_get_arguments_that_compute_the_same_as_the_fallback(
    head: int, kv_heads: int, texts: list[int], contexts: list[int]
) -> None:
    config, batch = config_of(head, kv_heads), batch_of(texts, contexts)
    sent = [torch.from_numpy(array) for array in span_arrays(batch, config)]
    spans = spans_of(batch, config, iter(sent))
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(sum(texts), len(batch.tokens))
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward_no_dropout_inplace", flash, "CPU")
        library.impl("_efficient_attention_forward", efficient, "CPU")
        for layer in range(config.num_layers):
            shape = config.attention(layer)
            q = torch.randn(len(batch.tokens), HEADS, shape.head_dim, generator=generator) / shape.head_dim**0.5
            kv = torch.randn(100 * len(contexts), 2 * shape.num_kv_heads, shape.head_dim, generator=generator)
            wanted, found = (
                canvas_attention(spans, torch.zeros(0), None, config, kernel) for kernel in ("fallback", "torch")
            )
            torch.testing.assert_close(found(layer, q, kv), wanted(layer, q, kv), atol=1e-5, rtol=0)
            torch.testing.assert_close(found(layer, q, kv, rows), found(layer, q, kv)[rows], atol=1e-5, rtol=0)
