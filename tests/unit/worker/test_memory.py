"""Iterations that exceed the device's memory: they run in parts, and the limit rises again."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from services.worker.cache.kv_allocator import Move
from services.worker.cache.kv_store import KvStore
from services.worker.engine import batch_limit
from services.worker.engine.batch_limit import MIN_ITERATIONS, BatchLimit
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.self_check import Canary, CanaryCheck
from services.worker.engine.step_results import IterationResult, StepReport
from services.worker.model.decoder import PackedDecoder
from services.worker.model.model_runner import Runner
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, decode_together

MAX_TOKENS = 512


class SmallDecoder(PackedDecoder):
    """Runs out of memory at more than `room` tokens."""

    room = 10**6

    def forward(self, tokens: Tensor, *rest: Any) -> Tensor:
        if len(tokens) > self.room:
            raise torch.OutOfMemoryError(f"{len(tokens)} tokens")
        return super().forward(tokens, *rest)


def small_decoder() -> SmallDecoder:
    source = random_decoder()
    decoder = SmallDecoder(source.config).eval()
    decoder.load_state_dict(source.state_dict())
    return decoder


def requests(count: int) -> list[Decode]:
    """Requests of 37 tokens."""
    return [Decode(ticket, [1, 2, ticket % 50, 4, 5], 32, 16, 0.9, MASK_ID, cached=True) for ticket in range(count)]


def decode_all(engine: Engine, decodes: Sequence[Decode]) -> list[list[int]]:
    """Decode the requests. Returns: their outputs."""
    decode_together(engine, decodes)
    return [decode.output.tolist() for decode in decodes]


@pytest.mark.parametrize("mode", [CacheMode.NONE, CacheMode.DUAL])
def test_a_batch_that_exceeds_the_memory_gives_the_same_texts_in_parts(mode: CacheMode) -> None:
    found = []
    for room in (10**6, 80):
        decoder = small_decoder()
        decoder.room = room
        engine = Engine(Runner(decoder, cache_tokens=1024), mode, EngineLimits(MAX_TOKENS, 64), "a-1")
        found.append(decode_all(engine, requests(9)))
    assert found[0] == found[1]
    assert engine.max_batch_tokens < MAX_TOKENS


@given(st.integers(1, 10_000), st.integers(1, 10_000))
@example(max_tokens=2, room=1)  # one rise reaches the maximum
def test_the_limit_stays_in_its_range_and_few_batches_fail(max_tokens: int, room: int) -> None:
    limit, failed, total = BatchLimit(max_tokens), 0, 4000
    for _ in range(total):
        while limit.tokens > room:
            limit.exceeded(limit.tokens)
            failed += 1
        limit.ran()
        assert 1 <= limit.tokens <= max_tokens
    rises = 1 + (total // MIN_ITERATIONS).bit_length()  # that fail: each doubles the iterations before the next one
    assert failed <= max_tokens.bit_length() * rises


def test_a_limit_that_holds_forgets_earlier_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_limit, "MIN_ITERATIONS", 1)
    limit = BatchLimit(8)
    for tokens in (8, 4, 2):
        limit.exceeded(tokens)

    def iterations_to_recover() -> int:
        count = 0
        while limit.tokens < 8:
            limit.ran()
            count += 1
        return count

    slow = iterations_to_recover()
    for _ in range(slow):
        limit.ran()
    limit.exceeded(8)
    assert iterations_to_recover() < slow


def test_a_canary_without_memory_is_not_a_wrong_one() -> None:
    decoder, now_s = small_decoder(), 0.0
    check = CanaryCheck(Canary.measure(Runner(decoder)), 1.0, lambda: now_s)
    now_s, decoder.room = 2.0, 1
    assert check.after(IterationResult("a-1", 1, None, [], StepReport(), 0.1)) is None
    assert check.unverified_s == 2.0
    now_s, decoder.room = 4.0, 10**6
    assert check.after(IterationResult("a-1", 1, None, [], StepReport(), 0.1)) is None
    assert check.unverified_s == 0.0


@given(st.integers(1, 40), st.integers(1, 60))
def test_a_region_moves_in_parts_over_its_own_target(distance: int, length: int) -> None:
    store = KvStore(random_decoder().kv_shape, 100)
    store._moving = {sizes: moving[:7] for sizes, moving in store._moving.items()}
    for layer in store._layers:
        layer.copy_(torch.arange(101.0).view(-1, 1, 1).expand_as(layer))
    store.move([Move(distance, 0, length)])
    for layer in store._layers:
        assert torch.equal(layer[:length, 0, 0], torch.arange(float(distance), distance + length))
        assert torch.equal(layer[length:, 0, 0], torch.arange(float(length), 101.0))
