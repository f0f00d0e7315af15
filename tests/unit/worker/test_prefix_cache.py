"""A request has the same text with a cache of common beginnings, and with a cache that another instance rebuilds."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.worker.cache.kv_allocator import Move
from services.worker.cache.prefix_pages import NO_PREFIXES, PrefixPages, PrefixSize
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.offline_decoder import CaseRequest, Decode, run_iterations
from services.worker.model.decoder import WHOLE
from services.worker.model.families import read_config
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import Runner, TokenPredictions
from services.worker.model.weights import load
from shared.arrays import pack_int32, unpack_int32
from shared.messages.steps import StepKind
from shared.prefix_names import first_name, page_names
from tests.support import steps
from tests.support.golden import COPY
from tests.support.present import present
from tests.support.steps import jobs_for, read_results

PAGE_OF = {"sdar/seed1": 16, "llada2/seed1": 32, "relatives/fast-dllm-v2": 32}  # tokens
SETS = [*PAGE_OF]
ROOM = 1200  # entries


@dataclass
class Memory:
    """Entries that hold names of pages instead of keys and values."""

    size: int
    entries: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.entries = [b""] * self.size

    def copy(self, moves: list[Move]) -> None:
        for source, target, length in moves:
            self.entries[target : target + length] = self.entries[source : source + length]


@given(
    texts=st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=30),  # one token per page
    num_pages=st.integers(1, 8),
)
def test_loaded_pages_are_those_of_the_same_text(texts: list[list[int]], num_pages: int) -> None:
    region = 6
    memory, pages = Memory(region + num_pages), PrefixPages(PrefixSize(1, num_pages), region)
    for text in texts:
        names = list(page_names(np.array(text, dtype=np.int32), 1, first_name("", 1)))
        loads = pages.load(names, 0)
        memory.copy(loads)
        loaded = sum(load.length for load in loads)
        assert memory.entries[:loaded] == names[:loaded]
        memory.entries[: len(names)] = names
        memory.copy(pages.save(names, 0))
        assert pages.used_tokens <= num_pages
        assert sum(load.length for load in pages.load(names, 0)) == min(len(names), num_pages)


def test_the_page_used_least_recently_is_evicted_first() -> None:
    pages = PrefixPages(PrefixSize(page_tokens=4, num_pages=3), first_entry=100)
    pages.save([b"system", b"a"], 0)
    pages.save([b"system", b"b"], 0)
    pages.load([b"system", b"a"], 0)
    pages.save([b"system", b"c"], 0)
    assert pages.load([b"system", b"a"], 0)[-1].length
    assert [sum(load.length for load in pages.load([b"system", name], 0)) for name in (b"a", b"b", b"c")] == [8, 4, 8]


def test_adjacent_pages_are_one_copy() -> None:
    pages = PrefixPages(PrefixSize(page_tokens=4, num_pages=3), first_entry=100)
    assert pages.save([b"a", b"b"], 8) == [Move(8, 100, 8)]
    assert pages.load([b"a", b"b"], 40) == [Move(100, 40, 8)]


def test_the_cache_keeps_room_for_the_longest_request() -> None:
    config = read_config(COPY / SETS[0])
    small = PrefixSize.of(config.max_length + 5 * 16, 0.5, 16, config.block_length, config.max_length)
    assert small.num_pages == 5
    assert PrefixSize.of(config.max_length, 0.5, 16, config.block_length, config.max_length) == NO_PREFIXES
    assert (
        PrefixSize.of(100 * config.max_length, 0.25, 3, config.block_length, config.max_length).page_tokens
        == config.block_length
    )


def make_engine(name: str, num_pages: int) -> Engine:
    runner = Runner(load(COPY / name, torch.float32, torch.device("cpu")), ROOM)
    size = PrefixSize(PAGE_OF[name], num_pages) if num_pages else NO_PREFIXES
    return Engine(runner, CacheMode.BLOCK, EngineLimits(1024, 8), "a-1", size)


def serve(engine: Engine, name: str, prompts: list[list[int]], threshold: float) -> tuple[list[Decode], list[int]]:
    """Decode these prompts together. Returns: the finished requests, and the tokens that each found cached."""
    config = read_config(COPY / name)
    decodes = []
    for index, prompt in enumerate(prompts):
        length = 24 + -(len(prompt) + 24) % config.block_length
        request = CaseRequest(str(index), prompt)
        decodes.append(Decode(request, length, config.block_length, lambda _: threshold))
    cached = [0] * len(prompts)
    for result, _ in run_iterations(engine, decodes):
        for job, tokens in zip(result.jobs, present(result.outcome).cached.tolist(), strict=True):
            cached[job.ticket] += tokens
    return decodes, cached


def prompt_of(parts: list[int]) -> list[int]:
    return [7 + 3 * part + i % 11 for part in parts for i in range(13)]


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(prompt_of)
FOUND = [[prompt_of([2, 0, 2])], [prompt_of([0]), prompt_of([2, 0, 2, 0, 2])]]  # once with other bits in the router


@pytest.mark.parametrize("name", SETS)
@given(
    rounds=st.lists(st.lists(PROMPTS, min_size=1, max_size=4), min_size=1, max_size=4),
    num_pages=st.sampled_from([1, 3, 12]),
    threshold=st.sampled_from([0.02, 0.1, 0.9]),
)
@example(rounds=FOUND, num_pages=1, threshold=0.02)
@settings(max_examples=6)
def test_texts_are_the_same_with_a_prefix_cache(
    name: str, rounds: list[list[list[int]]], num_pages: int, threshold: float
) -> None:
    caching, plain = make_engine(name, num_pages), make_engine(name, 0)
    for prompts in rounds:
        own, _ = serve(caching, name, prompts, threshold)
        reference, none = serve(plain, name, prompts, threshold)
        assert [decode.steps for decode in own] == [decode.steps for decode in reference]
        assert not any(none)
    assert caching.prefixes.used_tokens <= PAGE_OF[name] * num_pages


@pytest.mark.parametrize("name", SETS)
def test_the_next_turn_of_a_chat_finds_the_last_one_cached(name: str) -> None:
    engine, system = make_engine(name, 16), [9 + i % 50 for i in range(40)]
    [first], [none] = serve(engine, name, [system], 0.1)
    assert none == 0
    chat = [*system, *first.output.tolist(), 11, 12, 13]
    _, [cached] = serve(engine, name, [chat], 0.1)
    exact = len(system) + len(first.output) - first.block_length  # no step has fed the last block as a finished one
    assert cached == exact // PAGE_OF[name] * PAGE_OF[name]
    assert cached >= len(system) // PAGE_OF[name] * PAGE_OF[name] > 0


def test_requests_of_other_salts_or_blocks_share_nothing() -> None:
    engine, mask_id = make_engine(SETS[0], 16), read_config(COPY / SETS[0]).mask_token_id

    def arrive(ticket: int, salt: str, block_length: int) -> int:
        jobs = steps.jobs_for([steps.Decode(ticket, [9] * 48, 16, block_length, 0.5, mask_id, is_aligned=True)])
        results = steps.run_step(engine, replace(jobs, states=[replace(jobs.states[0], salt=salt)]))
        assert not results.failures
        return int(unpack_int32(results.cached).sum())

    assert [arrive(1, "a", 4), arrive(2, "a", 4)] == [0, 48]
    assert [arrive(3, "b", 4), arrive(4, "", 4), arrive(5, "a", 8)] == [0, 0, 0]


BLOCK, OUTPUT = 16, 48


class FailsAfterRebuild(Runner):
    """Runs out of memory in the forward after the first one."""

    runs = 0

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        self.runs += 1
        if self.runs == 2:
            raise torch.OutOfMemoryError("too large")
        return super().run(batch)


@pytest.mark.parametrize("mode", [CacheMode.PREFIX, CacheMode.DUAL])
def test_a_cache_is_rebuilt_again_if_memory_lacks_for_the_step_after_it(mode: CacheMode) -> None:
    decoder = load(COPY / "llada" / "seed1", torch.float32, torch.device("cpu"), WHOLE)
    mask = decoder.config.mask_token_id

    def decoded(*, moves: bool) -> list[tuple[list[list[float]], list[list[float]]]]:
        """The confidences and statistics of each step."""
        decodes = [steps.Decode(ticket, [7, 8, ticket], OUTPUT, BLOCK, 0.9, mask, cached=True) for ticket in (1, 2)]
        running, state_sent = Engine(Runner(decoder, 1024), mode, EngineLimits(1024, 8), "test-1"), False
        while left := [decode for decode in decodes if not decode.done]:
            jobs = jobs_for(left)
            if moves and not state_sent and left[0].trace:
                running = Engine(FailsAfterRebuild(decoder, 1024), mode, EngineLimits(1024, 8), "test-2")
                states, kinds = [decode.state for decode in left], pack_int32([StepKind.RECOMPUTE] * len(left))
                jobs, state_sent = replace(jobs, states=states, kinds=kinds), True
            running.accept(jobs)
            while (results := running.iterate()) is not None:
                assert not results.failures
                read_results(results, left)
        return [(decode.confidences, decode.stats) for decode in decodes]

    assert decoded(moves=True) == decoded(moves=False)
