"""The KV cache: requests wait for room, fail if they can never fit, and always free their entries."""

import weakref
from random import Random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.worker.cache.kv_allocator import KvAllocator, Region
from services.worker.cache.kv_store import KvStore
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine
from services.worker.engine.kv_reservations import KvReservations
from services.worker.engine.sequence_state import SequenceState, open_sequence
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import Runner, TokenPredictions
from shared.arrays import pack_int64
from shared.messages.steps import StepJobs, StepResults
from tests.support.engines import engine_of, random_runner, tickets
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.small_device import SmallDevice
from tests.support.steps import Decode, jobs_for, read_results, run_step

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
