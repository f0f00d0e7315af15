"""Ranks that fail or are signalled to stop; one without memory, which all report, and none waits for another."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.model import model_loading
from services.worker.model.decoder import Layer, PackedDecoder
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.model_runner import Runner, TokenPredictions
from services.worker.model.tensor_parallel import RankGroup, missed_collectives, parallel_runner
from shared.arrays import pack_int32
from shared.errors import BadInput
from tests.support.golden import COPY
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, decode_together
from tests.support.waiting import reached

LIMIT_S = 60.0
DEVICES = [torch.device("cpu")] * 2


class FailsOnRank0(Runner):
    """Fails on rank 0, while the other ranks wait for it as in any forward."""

    def __init__(self, group: RankGroup) -> None:
        super().__init__(random_decoder())
        self._group = group

    def run(self, batch: ForwardBatch) -> Any:  # noqa: ARG002
        if self._group.shard.rank == 0:
            raise RuntimeError("broken")
        return self._group.sum(torch.ones(1))


def exit_status(target: Callable[[], None]) -> int | None:
    """The exit status of an instance in its own process; None if it did not end in time."""
    instance = multiprocessing.get_context("spawn").Process(target=target)
    instance.start()
    instance.join(LIMIT_S)
    ended = instance.exitcode
    instance.kill()
    return ended


@pytest.mark.slow
async def test_a_step_that_fails_on_rank_0_ends_the_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert exit_status(_run_a_step) == 1
    await reached(lambda: not list(tmp_path.iterdir()))


def _run_a_step() -> None:
    with parallel_runner(DEVICES, FailsOnRank0) as ranks:
        ranks.run(cast(ForwardBatch, "a batch"))


@pytest.mark.slow
def test_ranks_use_the_smallest_cache_and_end_cleanly_on_sigterm() -> None:
    ours, theirs = multiprocessing.Pipe()
    instance = multiprocessing.get_context("spawn").Process(target=_serve_until_signalled, args=(theirs,))
    instance.start()
    try:
        assert ours.poll(LIMIT_S)
        assert ours.recv() == 200
        assert instance.pid is not None
        os.killpg(instance.pid, signal.SIGTERM)
        instance.join(LIMIT_S)
        assert instance.exitcode == 0
    finally:
        instance.kill()


def _serve_until_signalled(ready: Connection) -> None:
    os.setsid()
    signalled = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: signalled.set())
    with parallel_runner(DEVICES, _unequal) as ranks:
        ready.send(ranks.cache_tokens)
        signalled.wait(LIMIT_S)


def _unequal(group: RankGroup) -> Runner:
    decoder = random_decoder()
    with patch.object(model_loading, "tokens_that_fit", return_value=300 - 100 * group.shard.rank):
        return Runner(decoder, model_loading._num_cache_tokens(CacheSize(requests=64), decoder, group))


@pytest.mark.slow
def test_a_cache_that_exceeds_the_memory_is_reported_in_one_line() -> None:
    assert exit_status(_request_too_large_a_cache) == 0


def _request_too_large_a_cache() -> None:
    choice = ModelChoice(str(COPY / "llada/seed1"), tp=2, threads=1)
    with pytest.raises(BadInput, match="no memory for a cache"), open_runner(choice, CacheSize(1, tokens=10**12)):
        pass


ROOM = 60  # tokens of a batch; a request has 37
CACHE_TOKENS, MAX_TOKENS, UNLIMITED = 256, 512, 10**6
# The rank that fails, and the collectives before: none, all sums but the last, all sums, also the logits', also the
# highest logits'.
POINTS = [(rank, calls) for calls in (0, 3, 4, 5, 6) for rank in (0, 1)]


def split(group: RankGroup) -> PackedDecoder:
    """This rank's share of the random decoder."""
    whole = random_decoder()
    decoder = PackedDecoder(whole.config, group.shard, group.sum).eval()
    rank, size = group.shard.rank, group.shard.size
    for name, rows in decoder.named_parameters():
        source = whole.get_parameter(name).detach()
        parts = 3 if ".qkv." in name else 2 if ".gate_up." in name else 1
        axis = 1 if ".attn_out." in name or ".down." in name else 0
        if rows.shape != source.shape:
            source = torch.cat([part.chunk(size, axis)[rank] for part in source.chunk(parts)])
        rows.data.copy_(source)
    return decoder


def layers_of(decoder: PackedDecoder) -> list[Layer]:
    return cast("list[Layer]", list(decoder.layers))


class SmallRank(Runner):
    """Runs out of memory at each of POINTS in turn, in batches of more than ROOM tokens."""

    def __init__(self, group: RankGroup) -> None:
        super().__init__(split(group), CACHE_TOKENS, partial(self._counted, group.gather))
        self._rank, self._points, self._left = group.shard.rank, iter(POINTS), UNLIMITED
        for layer in layers_of(self.decoder):
            layer.reduce = partial(self._counted, group.sum)

    def _counted(self, collective: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if self._left == 0:
            raise torch.OutOfMemoryError("too large")
        self._left -= 1
        return collective(x)

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        self._left = UNLIMITED
        if len(batch.tokens) > ROOM:
            rank, calls = next(self._points)
            self._left = calls if rank == self._rank else UNLIMITED
        return super().run(batch)


def requests() -> list[Decode]:
    return [Decode(ticket, [1, 2, ticket, 4, 5], 32, 16, 0.9, MASK_ID, 0.8, ticket, cached=True) for ticket in range(3)]


def decode_all(runner: Any) -> tuple[list[list[int]], int]:
    """Decode three requests, with labels, a truncated distribution and changed logits. Returns: the outputs and the
    final limit."""
    engine, decodes = Engine(runner, CacheMode.DUAL, EngineLimits(MAX_TOKENS, 64), "a-1"), requests()
    labels = {"choices": [pack_int32([5] * 32), pack_int32([40] * 32)], "end_ids": pack_int32([7])}
    truncated = {"top_k": 5, "top_p": 0.8, "min_p": 0.05}
    changed = {"top_logprobs": 2, "presence_penalty": 1.0, "repetition_penalty": 1.5, "logit_bias": {5: 2.0, 40: -3.0}}
    decode_together(engine, decodes, {0: labels, 1: truncated, 2: changed})
    return [decode.output.tolist() for decode in decodes], engine.max_batch_tokens


def serve(answers: Connection) -> None:
    """An instance of two ranks."""
    with parallel_runner(DEVICES, SmallRank) as ranks:
        for _ in POINTS:
            answers.send(decode_all(ranks))


@pytest.mark.slow
def test_a_rank_without_memory_costs_no_text_and_no_rank() -> None:
    ours, theirs = multiprocessing.Pipe()
    instance = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    instance.start()
    wanted, _ = decode_all(Runner(random_decoder(), CACHE_TOKENS))
    try:
        for rank, calls in POINTS:
            assert ours.poll(LIMIT_S), f"the ranks wait for rank {rank}, which failed after {calls} collectives"
            outputs, limit = ours.recv()
            assert (outputs, limit < MAX_TOKENS) == (wanted, True)
        instance.join(LIMIT_S)
        assert instance.exitcode == 0
    finally:
        instance.kill()


def test_the_missed_collectives_have_the_shapes_of_the_real_ones() -> None:
    shapes: list[tuple[bool, torch.Size, torch.dtype]] = []

    class Recorded(Runner):
        def run(self, batch: ForwardBatch) -> TokenPredictions:
            shapes.clear()
            predictions = super().run(batch)
            for num_done in range(len(shapes) + 1):
                owed = [(is_sum, x.shape, x.dtype) for is_sum, x in missed_collectives(batch, self, num_done)]
                assert owed == shapes[num_done:]
            return predictions

    def reduce(x: Tensor) -> Tensor:
        shapes.append((True, x.shape, x.dtype))
        return x

    def gather(x: Tensor) -> Tensor:
        shapes.append((False, x.shape, x.dtype))
        return x.unsqueeze(0)

    decoder = random_decoder(torch.bfloat16)
    for layer in layers_of(decoder):
        layer.reduce = reduce
    decode_all(Recorded(decoder, CACHE_TOKENS, gather))
    assert 5 <= len(shapes) <= 7
