"""Padding a batch does not change results; on CUDA, a replayed graph computes the same."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import SequenceState
from services.worker.model.attention import fallback, varlen
from services.worker.model.cuda_graphs import BLOCK, SIZES, CacheStepGraphs, Captured, size_for
from services.worker.model.decoder import PackedDecoder
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.forward_inputs import Transfer
from tests.support.packed_forward import forward_packed
from tests.support.random_model import MASK_ID, random_decoder

CACHE_TOKENS = 2048
CPU = torch.device("cpu")


def sequences(prompts: list[int], block: int = BLOCK) -> list[SequenceState]:
    """One request per prompt length, each with two blocks of output."""
    resident, first = [], 0
    for ticket, prompt in enumerate(prompts):
        tokens = np.random.default_rng(ticket).integers(0, 50, prompt)
        canvas = np.r_[tokens, [MASK_ID] * 2 * block].astype(np.int32)
        known = np.full(2 * block, np.nan, dtype=np.float32)
        resident.append(SequenceState(ticket, prompt, block, canvas, known, kv_start=first))
        first += len(canvas)
    return resident


def cache_steps(prompts: list[int], decoder: PackedDecoder, store: KvStore) -> ForwardBatch:
    """The first cache step of such requests, after their recompute step."""
    resident = sequences(prompts)
    forward_packed(decoder, pack([Part(s, 0, 0, 0, len(s.canvas)) for s in resident], decoder.config), store)
    return pack([Part(s, 1, 0, *s.block_range(0)) for s in resident], decoder.config)


class OnCpu(CacheStepGraphs):
    """Runs the forward again where a graph would be replayed."""

    def _capture(self, arrays: list[NDArray[Any]]) -> Captured:
        packed = self._transfer.stage(arrays).clone()
        inputs = self._inputs(packed, arrays)
        hidden = self._forward(inputs)

        def replay() -> None:
            hidden.copy_(self._forward(inputs))

        return Captured(SimpleNamespace(replay=replay), packed, inputs, hidden)


@torch.inference_mode()
def test_a_replay_computes_the_same_as_the_packed_batch() -> None:
    decoder = random_decoder()
    store = KvStore(decoder.kv_shape, CACHE_TOKENS)
    graphs = OnCpu(decoder, store, fallback, Transfer(CPU))
    graphs.capture()
    for prompts in ([5], [5, 5, 9], [1, 2, 30, 31, 40], [3]):
        batch = cache_steps(prompts, decoder, store)
        ran = graphs.run(batch, batch.rows)
        assert ran is not None
        replayed, inputs = ran
        assert inputs.candidates(len(batch.rows)).current.tolist() == batch.current.tolist()
        wanted = forward_packed(decoder, batch, store)[torch.from_numpy(batch.rows)]
        torch.testing.assert_close(replayed, wanted, atol=1e-4, rtol=0)


def test_a_batch_is_served_by_the_next_larger_size() -> None:
    decoder = random_decoder()
    store = KvStore(decoder.kv_shape, CACHE_TOKENS)
    assert [size_for(cache_steps([5] * count, decoder, store)) for count in (1, 3, 8)] == [1, 4, 8]


def test_recompute_steps_other_blocks_and_large_batches_have_no_graph() -> None:
    decoder = random_decoder()
    [one], [short] = sequences([5]), sequences([5], block=16)
    assert size_for(pack([Part(one, 0, 0, 0, len(one.canvas))], decoder.config)) is None
    assert size_for(pack([Part(short, 1, 0, *short.block_range(0))], decoder.config)) is None
    many = [Part(s, 1, 0, *s.block_range(0)) for s in sequences([1] * (SIZES[-1] + 1))]
    assert size_for(pack(many, decoder.config)) is None


@pytest.mark.cuda
@torch.inference_mode()
def test_a_replayed_graph_computes_the_same_as_the_eager_forward() -> None:
    decoder = random_decoder().to("cuda", torch.bfloat16)
    store = KvStore(decoder.kv_shape, CACHE_TOKENS)

    graphs = CacheStepGraphs(decoder, store, varlen, Transfer(torch.device("cuda")))
    graphs.capture()
    for prompts in ([5, 9], [7, 30], [5, 5, 9]):
        batch = cache_steps(prompts, decoder, store)
        ran = graphs.run(batch, batch.rows)
        assert ran is not None
        replayed, _ = ran
        wanted = forward_packed(decoder, batch, store, varlen)[torch.from_numpy(batch.rows)]
        torch.testing.assert_close(replayed, wanted, atol=3e-2, rtol=0)
