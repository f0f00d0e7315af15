"""The KV cache, whose requests wait for room, and iterations that exceed the memory of the device."""

import weakref
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from services.worker.cache.kv_allocator import KvAllocator, Move, Region
from services.worker.cache.kv_store import KvStore
from services.worker.engine import batch_limit
from services.worker.engine.batch_limit import MIN_ITERATIONS, BatchLimit
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine
from services.worker.engine.kv_reservations import KvReservations
from services.worker.engine.self_check import Canary, CanaryCheck
from services.worker.engine.sequence_state import SequenceState, open_sequence
from services.worker.engine.step_results import IterationResult, StepReport
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import Runner, TokenPredictions
from shared.arrays import pack_int64
from shared.messages.steps import StepJobs, StepResults
from tests.support.engines import SmallDevice, engine_of, random_runner, tickets
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, decode_together, jobs_for, read_results, run_step

MAX_TOKENS = 512


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
        runner = SmallDevice(random_decoder(), cache_tokens=1024)
        runner.room = room
        engine = engine_of(mode, runner=runner, tokens=MAX_TOKENS)
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
    runner, now_s = SmallDevice(random_decoder()), 0.0
    runner.room = 10**6
    check = CanaryCheck(Canary.measure(runner), 1.0, lambda: now_s)
    now_s, runner.room = 2.0, 1
    assert check.after(IterationResult("a-1", 1, None, [], StepReport(), 0.1)) is None
    assert check.unverified_s == 2.0
    now_s, runner.room = 4.0, 10**6
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


ROOM = 100  # tokens
KV_SHAPE = (2 * random_decoder().config.num_kv_heads, random_decoder().config.head_dim)


def engine_with(runner: Runner | None = None) -> Engine:
    return engine_of(CacheMode.DUAL, runner=runner or random_runner(ROOM), requests=8)


def request(ticket: int, *, prompt: int = 8, output: int = 32) -> Decode:
    tokens = np.random.default_rng(ticket).integers(0, 50, prompt).tolist()
    return Decode(ticket, tokens, output, 16, 0.5, MASK_ID, cached=True)


def run(engine: Engine, jobs: StepJobs) -> StepResults | None:
    engine.accept(jobs)
    return engine.iterate()


def test_a_request_waits_until_the_cache_has_room() -> None:
    engine = engine_with()
    assert tickets(run(engine, jobs_for([request(1), request(2), request(3)]))) == [1, 2]
    assert engine.waiting
    assert engine.iterate() is None
    assert tickets(run(engine, StepJobs(epoch=1, drops=pack_int64([1])))) == [3]


def test_a_smaller_request_does_not_overtake_a_waiting_one() -> None:
    engine = engine_with()
    run(engine, jobs_for([request(1), request(2)]))
    assert run(engine, jobs_for([request(3), request(4, prompt=2, output=16)])) is None
    assert tickets(run(engine, StepJobs(epoch=1, drops=pack_int64([1])))) == [4, 3]


def test_a_request_with_entries_continues_while_others_wait() -> None:
    engine, first = engine_with(), request(1)
    read_results(run_step(engine, jobs_for([first, request(2), request(3)])), [first, request(2)])
    assert tickets(run(engine, jobs_for([first]))) == [1]


def test_a_request_larger_than_the_cache_fails_with_the_reason() -> None:
    results = run_step(engine_with(), jobs_for([request(1, prompt=70)]))
    assert results.failures[0].message == f"102 tokens; this instance's cache holds {ROOM}"


def test_a_failed_attempt_frees_its_memory_before_the_next_one() -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    kept: list[int] = []  # number of earlier attempts' tensors still alive, per attempt

    class Watched(SmallDevice):
        def run(self, batch: ForwardBatch) -> TokenPredictions:
            kept.append(sum(tensor() is not None for tensor in made))
            activations = torch.zeros(8)
            made.append(weakref.ref(activations))
            return super().run(batch)

    runner = Watched(random_decoder(), cache_tokens=ROOM)
    assert tickets(run(engine_with(runner), jobs_for([request(1), request(2)]))) == [1]
    assert kept == [0, 0]


def test_a_request_that_alone_exceeds_the_memory_fails() -> None:
    results = run_step(engine_with(SmallDevice(random_decoder(), cache_tokens=ROOM)), jobs_for([request(1, prompt=30)]))
    assert "62 tokens does not fit" in results.failures[0].message


@given(st.lists(st.integers(1, 30), max_size=30), st.randoms())
def test_each_entry_is_in_one_region_until_it_is_freed(sizes: list[int], order: Random) -> None:
    allocator = KvAllocator(64)
    regions: list[Region] = []
    for size in sizes:
        start = allocator.allocate(size)
        if start is not None:
            regions.append(Region(start, size))
        else:
            assert size > allocator.num_free or _most_side_by_side(regions) < size
        taken = [entry for region in regions for entry in range(region.start, region.start + region.length)]
        assert len(set(taken)) == len(taken) == 64 - allocator.num_free
        if len(regions) > 2:
            allocator.free(*regions.pop(order.randrange(len(regions))))


def _most_side_by_side(regions: list[Region]) -> int:
    """The longest run of free entries."""
    taken = {entry for region in regions for entry in range(region.start, region.start + region.length)}
    return max(len(run) for run in "".join("x" if entry in taken else "." for entry in range(64)).split("x"))


@given(st.lists(st.integers(1, 20), min_size=2, max_size=12), st.randoms())
def test_regions_keep_their_contents_when_they_move_together(sizes: list[int], order: Random) -> None:
    decoder = random_decoder()
    store, reservations = KvStore(decoder.kv_shape, ROOM), KvReservations(CacheMode.DUAL, ROOM)
    contents: dict[int, SequenceState] = {}
    for ticket, size in enumerate(sizes * 3):
        sequence = open_sequence(request(ticket, prompt=size, output=16).state, decoder.config)
        length = len(sequence.canvas)
        while not reservations.reserve(sequence, 0):
            reservations.evict(contents.pop(order.choice(list(contents))))
        store.move(reservations.take_moves())
        contents[ticket] = sequence
        entries = torch.arange(sequence.kv_start, sequence.kv_start + length)
        layer = store.write(0, entries, torch.full((length, *KV_SHAPE), float(ticket)))
        for known, other in contents.items():
            assert (layer[other.kv_start : other.kv_start + len(other.canvas)] == known).all()
