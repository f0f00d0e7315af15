"""The kernels of attention: the choice between them, what the fallback computes, and those of canvases."""

import inspect
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.model import attention as own
from services.worker.model.attention import RequestSpans, fallback, flash, kernel_name
from services.worker.model.families import ModelConfig, parse_config
from services.worker.model.forward_batch import ForwardBatch, ForwardInputs
from services.worker.model.span_attention import span_arrays, span_attention
from services.worker.model.span_attention import spans_of as canvas_spans_of
from tests.support.canvas_model import RULES, SIZES
from tests.support.packed_forward import forward_packed
from tests.support.random_model import MASK_ID, random_decoder

BLOCK, HEADS, HEAD = 16, 4, 8


def attend_exactly(
    q: Tensor, k: Tensor, v: Tensor, bounds: Iterable[tuple[int, int, int, int]], window: tuple[int, int]
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


def exact(q: Tensor, k: Tensor, v: Tensor, spans: RequestSpans) -> Tensor:
    """Without a window, and with scaled scores."""
    bounds = list(bounds_of(spans.cu_seq_q, spans.cu_seq_k, spans.seqused_k))
    assert all(end - first <= spans.max_q and length <= spans.max_k for first, end, _, length in bounds)
    return attend_exactly(q * q.shape[-1] ** -0.5, k, v, bounds, (-1, -1))


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int
) -> Tensor:
    """flash-attn's public function: a sequence without queries has no result, and all keys of the others count. With
    `max_seqlen_q` 1 and grouped heads it takes one query of each sequence."""
    assert max_seqlen_q > 1
    counts = cu_seqlens_q.diff() > 0
    starts, lengths = cu_seqlens_k[:-1][counts], cu_seqlens_k.diff()[counts]
    rows = torch.cat([cu_seqlens_q[:1], cu_seqlens_q[1:][counts]])
    bounds = rows, torch.cat([starts, cu_seqlens_k[-1:]]), max_seqlen_q, max_seqlen_k
    return exact(q, k, v, RequestSpans(*bounds, lengths))


requests = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=6)


def spans_of(sizes: list[tuple[int, int, int]]) -> RequestSpans:
    """Those of requests of (fed tokens, keys, unused keys before them)."""
    fed, keys, gaps = np.array(sizes).T
    starts = np.cumsum(keys + gaps) - keys
    columns = np.r_[0, fed.cumsum()], np.r_[starts, starts[-1] + keys[-1]], keys
    cu_seq_q, cu_seq_k, seqused_k = (torch.from_numpy(column.astype(np.int32)) for column in columns)
    return RequestSpans(cu_seq_q, cu_seq_k, int(fed.max()), int(keys.max()), seqused_k)


def tensors(spans: RequestSpans, kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(int(spans.cu_seq_q[-1]), HEADS, HEAD, generator=generator)
    kv = torch.randn(int(spans.cu_seq_k[-1]), 2 * kv_heads, HEAD, generator=generator)
    k, v = kv.chunk(2, dim=1)
    return q, k, v


@given(requests, st.sampled_from([1, 2, 4]), st.permutations(range(6)))
def test_the_fallback_computes_attention_wherever_keys_lie(
    sizes: list[tuple[int, int, int]], kv_heads: int, order: list[int]
) -> None:
    spans = spans_of(sizes)
    shuffled = [place for place in order if place < len(sizes)]  # regions may lie in any order
    starts, lengths = spans.cu_seq_k[:-1][shuffled], spans.seqused_k[shuffled]
    spans = spans._replace(cu_seq_k=torch.cat((starts, starts[-1:] + lengths[-1:])), seqused_k=lengths)
    q, k, v = tensors(spans_of(sizes), kv_heads)
    torch.testing.assert_close(fallback(q, k, v, spans), exact(q, k, v, spans), atol=1e-5, rtol=0)


def test_requests_of_equal_lengths_at_equal_distances_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    attend = own._attend_equal

    def counted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        calls.append(len(k))
        return attend(q, k, v)

    monkeypatch.setattr(own, "_attend_equal", counted)
    spans = spans_of([(2, 5, 3)] * 3 + [(2, 5, 4), (2, 5, 3), (3, 5, 3)])
    q, k, v = tensors(spans)
    torch.testing.assert_close(fallback(q, k, v, spans), exact(q, k, v, spans), atol=1e-5, rtol=0)
    assert calls == [3, 2, 1]


@given(requests, st.lists(st.integers(0, 29), min_size=1, max_size=8))
def test_the_last_layer_computes_only_the_requests_with_wanted_rows(
    sizes: list[tuple[int, int, int]], wanted: list[int]
) -> None:
    spans = spans_of(sizes)
    q, k, v = tensors(spans)
    rows = torch.tensor([row % len(q) for row in wanted])
    whole, attended = fallback(q, k, v, spans), list[int]()
    attend = own._attend_equal

    def counted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attended.append(len(q))
        return attend(q, k, v)

    groups = own._groups(spans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "_attend_equal", counted)
        found = own._attend_rows(q, k, v, groups, rows)
    assert torch.equal(found, whole[rows])
    needed = [group.rows for group in groups if any(group.rows.start <= row < group.rows.stop for row in rows)]
    assert attended == [each.stop - each.start for each in needed]


def test_rows_on_a_device_are_not_read_on_the_host() -> None:
    spans = spans_of([(2, 5, 3)] * 3)
    q, k, v = (each.to("meta") for each in tensors(spans))
    attend = own.attention(cast(ForwardInputs, SimpleNamespace(write_entries=(), **spans._asdict())), None, fallback)
    rows = torch.tensor([1, 4], device="meta")
    assert attend(0, q, torch.cat((k, v), dim=1), rows).shape == (2, *q.shape[1:])


def test_a_request_longer_than_the_stated_maximum_is_refused() -> None:
    spans = spans_of([(2, 5, 0)])
    with pytest.raises(ValueError, match="longer than max_q or max_k"):
        fallback(*tensors(spans), spans._replace(max_k=4))


def sequence(ticket: int, prompt: int) -> SequenceState:
    tokens = np.random.default_rng(ticket).integers(0, 50, prompt)
    canvas = np.r_[tokens, [MASK_ID] * BLOCK].astype(np.int32)
    known = np.full(BLOCK, np.nan, dtype=np.float32)
    return SequenceState(ticket, prompt, BLOCK, canvas, known, kv_start=64 * ticket)


@torch.inference_mode()
@pytest.mark.parametrize("recomputing", [0, 1, 3])
def test_all_kernels_compute_the_same(recomputing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_flash_attn", lambda: flash_attn_varlen_func)
    decoder, resident = random_decoder(), [sequence(ticket, prompt) for ticket, prompt in enumerate((7, 7, 9))]
    whole = [Part(s, 0, 0, 0, len(s.canvas)) for s in resident]
    blocks = [Part(s, 1, 0, *s.block_range(0)) for s in resident[recomputing:]]
    found = []
    for kernel in (fallback, flash, exact):
        store = KvStore(decoder.kv_shape, 256)
        forward_packed(decoder, pack(whole, decoder.config), store, kernel)  # fills the store
        found.append(forward_packed(decoder, pack([*whole[:recomputing], *blocks], decoder.config), store, kernel))
    torch.testing.assert_close(found[0], found[2], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], found[2], atol=1e-5, rtol=0)


NAME_OF = inspect.unwrap(kernel_name)
CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("dtype", "capability", "wanted"),
    [
        (torch.bfloat16, (9, 0), "torch"),
        (torch.float32, (9, 0), "fallback"),  # the kernels compute in 16 bits only
        (torch.bfloat16, (7, 5), "fallback"),  # and not before Ampere
    ],
)
def test_the_kernel_needs_16_bits_and_an_ampere_gpu(
    dtype: torch.dtype, capability: tuple[int, int], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert NAME_OF("auto", CUDA, dtype) == wanted
    if wanted == "fallback":
        with pytest.raises(ValueError, match="needs bfloat16 and an Ampere or later GPU"):
            NAME_OF("torch", CUDA, dtype)


def test_flash_attn_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(own, "_flash_attn", lambda: None)
    with pytest.raises(ValueError, match="is not installed"):
        NAME_OF("flash-attn", CUDA, torch.bfloat16)
    assert NAME_OF("auto", CUDA, torch.bfloat16) == "torch"
    monkeypatch.setattr(own, "_flash_attn", lambda: flash_attn_varlen_func)
    for setting in ("flash-attn", "auto"):
        assert NAME_OF(setting, CUDA, torch.bfloat16) == "flash-attn"
    assert NAME_OF("torch", CUDA, torch.bfloat16) == "torch"
    assert NAME_OF("auto", CUDA, torch.bfloat16, has_text_spans=True) == "torch"
    with pytest.raises(ValueError, match="does not serve models whose text attends to earlier tokens; use auto"):
        NAME_OF("flash-attn", CUDA, torch.bfloat16, has_text_spans=True)
    assert NAME_OF("auto", CUDA, torch.float32) == "fallback"


# --- canvases: by stand-ins of torch's two operators, as these run on CUDA only ---

CANVAS = 16


def config_of(head: int, kv_heads: int) -> ModelConfig:
    """Layers with a window, and with full attention of large heads."""
    text = SIZES | {"num_attention_heads": HEADS, "global_head_dim": head, "num_global_key_value_heads": kv_heads}
    published = {"architectures": ["DiffusionGemmaForBlockDiffusion"], "canvas_length": CANVAS, "text_config": text}
    return parse_config(published | {"generation": RULES, "eos_token_id": 1})


def flash_operator(out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
    """Of heads up to 256, with grouped queries and windows."""
    cu_seq_q, cu_seq_k, _, _, dropout, is_causal, _ = rest
    assert (dropout, options["scale"], options["num_splits"], q.shape[2] <= 256) == (0.0, 1.0, 1, True)
    window = (-1, 0) if is_causal else (options["window_size_left"], options["window_size_right"])
    out.copy_(attend_exactly(q, k, v, bounds_of(cu_seq_q, cu_seq_k, options["seqused_k"]), window))
    return q.new_zeros(0)


def efficient_operator(q: Tensor, k: Tensor, v: Tensor, bias: None, *rest: Any, **options: Any) -> tuple[Any, ...]:
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
    spans = canvas_spans_of(batch, config, iter(sent))
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(sum(texts), len(batch.tokens))
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward_no_dropout_inplace", flash_operator, "CPU")
        library.impl("_efficient_attention_forward", efficient_operator, "CPU")
        for layer in range(config.num_layers):
            shape = config.attention(layer)
            q = torch.randn(len(batch.tokens), HEADS, shape.head_dim, generator=generator) / shape.head_dim**0.5
            kv = torch.randn(100 * len(contexts), 2 * shape.num_kv_heads, shape.head_dim, generator=generator)
            wanted, found = (
                span_attention(spans, torch.zeros(0), None, config, kernel) for kernel in ("fallback", "torch")
            )
            torch.testing.assert_close(found(layer, q, kv), wanted(layer, q, kv), atol=1e-5, rtol=0)
            torch.testing.assert_close(found(layer, q, kv, rows), found(layer, q, kv)[rows], atol=1e-5, rtol=0)
