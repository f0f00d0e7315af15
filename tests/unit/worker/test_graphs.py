"""Padding a batch to its bucket does not change results; on CUDA, a replayed graph computes the same."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import services.worker.model.cuda_graphs
from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import ForwardBatch, Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.model.attention import attention
from services.worker.model.cuda_graphs import CacheStepGraphs, PaddedBatch, bucket, forward, pad
from services.worker.model.decoder import PackedDecoder
from tests.support.random_model import MASK_ID, random_decoder

BLOCK, CACHE_TOKENS = 16, 512
CPU = torch.device("cpu")


def sequences(prompts: list[int]) -> list[SequenceState]:
    """One request per prompt length, each with two blocks of output."""
    resident, first = [], 0
    for ticket, prompt in enumerate(prompts):
        tokens = np.random.default_rng(ticket).integers(0, 50, prompt)
        canvas = np.r_[tokens, [MASK_ID] * 2 * BLOCK].astype(np.int32)
        entries = np.arange(first, first := first + len(canvas))
        known = np.full(2 * BLOCK, np.nan, dtype=np.float32)
        resident.append(SequenceState(ticket, prompt, BLOCK, canvas, known, 0.0, 0, kv_entries=entries))
    return resident


def cache_steps(prompts: list[int], decoder: PackedDecoder, store: KvStore, device: torch.device = CPU) -> ForwardBatch:
    """The first cache step of such requests, after their recompute step."""
    resident = sequences(prompts)
    whole = pack([Part(s, 0, 0, 0, len(s.canvas)) for s in resident], decoder.config)
    run_packed(whole, decoder, store, device)
    return pack([Part(s, 1, 0, *s.block_range(0)) for s in resident], decoder.config)


def run_packed(batch: ForwardBatch, decoder: PackedDecoder, store: KvStore, device: torch.device) -> torch.Tensor:
    tokens, positions = (torch.from_numpy(x).to(device) for x in (batch.tokens, batch.positions))
    hidden: torch.Tensor = decoder(tokens, positions, attention(batch, store, device, torch.float32))
    return hidden


@torch.inference_mode()
@pytest.mark.parametrize("prompts", [[5], [5, 5, 9], [1, 2, 30, 31, 40]])
def test_a_padded_batch_computes_the_same_as_the_packed_one(prompts: list[int]) -> None:
    decoder = random_decoder()
    store = KvStore(decoder, CACHE_TOKENS)
    batch = cache_steps(prompts, decoder, store)
    shape = bucket(batch)
    assert shape is not None
    padded = pad(batch, shape[0], shape[2], store.padding_entry)
    own = forward(decoder, store, padded)[: len(batch.tokens)]
    torch.testing.assert_close(own, run_packed(batch, decoder, store, CPU), atol=1e-4, rtol=0)


def test_buckets_are_powers_of_two() -> None:
    decoder = random_decoder()
    store = KvStore(decoder, CACHE_TOKENS)
    assert bucket(cache_steps([5, 5, 9], decoder, store)) == (4, BLOCK, 256)
    assert bucket(cache_steps([5] * 8, decoder, store)) == (8, BLOCK, 256)


def test_recompute_steps_and_large_batches_have_no_bucket() -> None:
    decoder = random_decoder()
    store = KvStore(decoder, 1024)
    [one] = sequences([5])
    assert bucket(pack([Part(one, 0, 0, 0, len(one.canvas))], decoder.config)) is None
    assert bucket(cache_steps([1] * 17, decoder, store)) is None
    many = [Part(s, 1, 0, 1, len(s.canvas)) for s in sequences([40] * 16)]  # 71 tokens each
    assert bucket(pack(many, decoder.config)) is None


class OnCpu(CacheStepGraphs):
    """Runs the forward again where a graph would be replayed."""

    captured = 0

    def _capture(self, padded: PaddedBatch) -> Any:
        self.captured += 1
        inputs = PaddedBatch(*(part.clone() for part in padded.tensors))
        hidden = forward(self._decoder, self._store, inputs)

        def replay() -> None:
            hidden.copy_(forward(self._decoder, self._store, inputs))

        return SimpleNamespace(replay=replay), inputs, hidden


@torch.inference_mode()
def test_a_bucket_is_captured_once_until_it_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(services.worker.model.cuda_graphs, "MAX_GRAPHS", 2)
    decoder = random_decoder()
    store = KvStore(decoder, CACHE_TOKENS)
    graphs, captured = OnCpu(decoder, store), []
    for prompts in ([5], [5, 5], [9], [5, 5, 5], [7], [9, 5]):
        batch = cache_steps(prompts, decoder, store)
        replayed = graphs.run(batch)
        assert replayed is not None
        torch.testing.assert_close(replayed, run_packed(batch, decoder, store, CPU), atol=1e-4, rtol=0)
        captured.append(graphs.captured)
    assert captured == [1, 2, 2, 3, 3, 4]


@pytest.mark.cuda
@torch.inference_mode()
def test_a_replayed_graph_computes_the_same_as_the_eager_forward() -> None:
    device = torch.device("cuda")
    decoder = random_decoder().to(device)
    store = KvStore(decoder, CACHE_TOKENS)
    graphs = CacheStepGraphs(decoder, store)
    for prompts in ([5, 9], [7, 30], [5, 5, 9]):  # the second one replays what the first one captured
        batch = cache_steps(prompts, decoder, store, device)
        replayed = graphs.run(batch)
        assert replayed is not None
        torch.testing.assert_close(replayed, run_packed(batch, decoder, store, device), atol=1e-3, rtol=0)
