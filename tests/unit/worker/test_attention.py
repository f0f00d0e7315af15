"""The back ends of attention: the choice between them, and that both compute the same."""

import inspect
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.model import attention as own
from services.worker.model.attention import attention, backend
from tests.support.random_model import MASK_ID, random_decoder

BLOCK, DEVICE = 16, torch.device("cpu")


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """The computation of flash-attn's kernel, with its published signature."""
    assert (dropout_p, softmax_scale, causal) == (0.0, None, False)
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    ends = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True))
    assert ends[-1] == (len(q), len(k))
    mixed = []
    for (first_q, first_k), (end_q, end_k) in pairwise(ends):
        assert end_q - first_q <= max_seqlen_q
        assert end_k - first_k <= max_seqlen_k
        scores = torch.einsum("qhd,khd->hqk", q[first_q:end_q], k[first_k:end_k]) * q.shape[-1] ** -0.5
        mixed.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v[first_k:end_k]))
    return torch.cat(mixed)


def sequence(ticket: int, prompt: int) -> SequenceState:
    tokens = np.random.default_rng(ticket).integers(0, 50, prompt)
    canvas = np.r_[tokens, [MASK_ID] * BLOCK].astype(np.int32)
    entries = np.arange(64 * ticket, 64 * ticket + len(canvas))
    return SequenceState(
        ticket, prompt, BLOCK, canvas, np.full(BLOCK, np.nan, dtype=np.float32), 0.0, 0, kv_entries=entries
    )


@torch.inference_mode()
@pytest.mark.parametrize("recomputing", [0, 1, 3])
def test_flash_and_fused_attention_compute_the_same(recomputing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, resident = random_decoder(), [sequence(ticket, prompt) for ticket, prompt in enumerate((7, 7, 9))]
    whole = [Part(s, 0, 0, 0, len(s.canvas)) for s in resident]
    batch = pack(
        [*whole[:recomputing], *(Part(s, 1, 0, *s.block_range(0)) for s in resident[recomputing:])], decoder.config
    )
    found = []
    for name in ("torch", "flash-attn"):
        monkeypatch.setattr(own, "backend", lambda *_, name=name: name)
        monkeypatch.setattr(own, "_flash_varlen", lambda: varlen)
        store = KvStore(decoder, 256)
        for now in (pack(whole, decoder.config), batch):  # the first fills the store
            attend = attention(now, store, DEVICE, torch.float32)
            hidden = decoder(torch.from_numpy(now.tokens), torch.from_numpy(now.positions), attend)
        found.append(hidden)
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "capability", "wanted"),
    [
        (torch.bfloat16, (9, 0), "flash-attn"),
        (torch.float32, (9, 0), "torch"),  # it computes in 16 bits only
        (torch.bfloat16, (7, 5), "torch"),  # and not before Ampere
    ],
)
def test_flash_attn_needs_16_bits_and_an_ampere_gpu(
    dtype: torch.dtype, capability: tuple[int, int], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "_flash_varlen", lambda: varlen)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert inspect.unwrap(backend)(torch.device("cuda"), dtype) == wanted
