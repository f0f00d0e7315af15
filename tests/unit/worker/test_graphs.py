"""Padding a batch does not change results; on CUDA, a replayed graph computes the same."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from services.worker.cache.kv_store import KvStore
from services.worker.engine.batch import Part, pack
from services.worker.engine.sequence_state import NO_REGION, SequenceState
from services.worker.model.attention import fallback, kernel_of, varlen
from services.worker.model.cuda_graphs import (
    BLOCK,
    SIZES,
    CacheStepGraphs,
    Captured,
    _empty_batch,
    can_capture,
    size_for,
)
from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import parse_config
from services.worker.model.forward_batch import ForwardBatch, Transfer
from services.worker.model.logit_changes import RequestChanges
from services.worker.model.model_runner import Runner
from services.worker.model.weights import empty_decoder
from shared.messages.requests import Sampling
from tests.support.golden import COPY
from tests.support.packed_forward import forward_packed
from tests.support.present import present
from tests.support.random_model import LLADA, MASK_ID, SDAR, random_decoder

CACHE_TOKENS = 2048


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

        return Captured(SimpleNamespace(replay=replay), packed, hidden)


@torch.inference_mode()
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_replay_computes_the_same_as_the_packed_batch(device: str) -> None:
    on_cpu = device == "cpu"
    graphs_of, kernel, dtype, tolerance = (
        (OnCpu, fallback, torch.float32, 1e-4) if on_cpu else (CacheStepGraphs, varlen, torch.bfloat16, 3e-2)
    )
    decoder = random_decoder().to(device, dtype)
    store = KvStore(decoder.kv_shape, CACHE_TOKENS)
    graphs = graphs_of(decoder, store, kernel, Transfer(torch.device(device)))
    graphs.capture()
    for prompts in ([5], [5, 5, 9], [1, 2, 30, 31, 40], [3]):
        batch = cache_steps(prompts, decoder, store)
        replayed = present(graphs.run(batch, batch.rows))
        wanted = forward_packed(decoder, batch, store, kernel)[torch.from_numpy(batch.rows)]
        torch.testing.assert_close(replayed, wanted, atol=tolerance, rtol=0)


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


# --- reads from the host, which a capture forbids and which make a step wait; the meta device refuses them ---

META = torch.device("meta")
LLADA2 = json.loads((COPY / "llada2/seed1/config.json").read_text()) | {"mask_token_id": MASK_ID}


@torch.inference_mode()
@pytest.mark.parametrize("config", [LLADA, SDAR, LLADA2])
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [("torch", torch.bfloat16), ("fallback", torch.bfloat16), ("fallback", torch.float32), ("torch", torch.float32)],
)
def test_captured_steps_do_not_read_from_the_host(config: dict[str, Any], kernel: str, dtype: torch.dtype) -> None:
    decoder = empty_decoder(parse_config(config), dtype, META)
    store = KvStore(decoder.kv_shape, CACHE_TOKENS)
    graphs = CacheStepGraphs(decoder, store, kernel_of(kernel), Transfer(META))
    arrays = graphs._arrays(_empty_batch(store.padding_entry), 4, np.zeros(1, dtype=np.int64))
    inputs = graphs._inputs(graphs._transfer.stage(arrays).to(META), arrays)
    if can_capture(kernel, decoder.config, META, dtype):
        assert graphs._forward(inputs).shape == (4 * BLOCK, decoder.config.width)
    else:
        with pytest.raises(RuntimeError, match=r"[Mm]eta"):
            graphs._forward(inputs)


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the copies to the host, and refuses tensors of the host within an operation of the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:  # in inference mode, composite operations arrive whole
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        name, target = func.overloadpacket.__name__, (kwargs or {}).get("device")
        if name == "_to_copy" and target is not None and torch.device(target).type == "cpu":
            self.copies += 1
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        devices = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim()}
        assert devices != {"cpu", "meta"}, name
        return func(*args, **(kwargs or {}))


FEATURES: list[dict[str, Any]] = [
    {},
    {"sampling": Sampling(temperature=0.7)},
    {"sampling": Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1)},
    {"top_logprobs": 3},
    {"top_logprobs": 3, "sampling": Sampling(temperature=0.7)},
    {"choices": [np.array([3, 4], dtype=np.int32), np.array([5], dtype=np.int32)], "end_ids": np.array([1])},
    {"changes": RequestChanges.of(Sampling(frequency_penalty=1.0, logit_bias={3: 1.0}), np.array([1, 2]))},
]


@pytest.mark.parametrize("config", [LLADA, SDAR, LLADA2])
@pytest.mark.parametrize(
    ("features", "cache_tokens"), [(FEATURES[0], 0), *((features, CACHE_TOKENS) for features in FEATURES)]
)
def test_a_step_reads_from_the_device_once(config: dict[str, Any], features: dict[str, Any], cache_tokens: int) -> None:
    runner = Runner(empty_decoder(parse_config(config), torch.bfloat16, META), cache_tokens)
    block = runner.config.block_length or BLOCK
    resident = sequences([block, 2 * block], block)
    for each in resident:
        for name, value in {**features, "is_aligned": runner.config.is_block_causal}.items():
            setattr(each, name, value)
        each.kv_start = each.kv_start if cache_tokens else NO_REGION
    batch = pack([Part(each, 0, 0, 0, len(each.canvas)) for each in resident], runner.config)
    with HostReads() as reads:
        runner.run(batch)
    assert reads.copies == 1
