"""A request that moves to another instance gets the same text as one that stays."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.model.decoder import WHOLE
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import Runner, TokenPredictions
from services.worker.model.weights import load
from shared.arrays import pack_int32
from shared.messages.steps import StepKind
from tests.support.golden import COPY
from tests.support.steps import Decode, jobs_for, read_results, run_step

BLOCK, OUTPUT = 16, 48
CASES = [
    ("llada", CacheMode.NONE),
    ("llada", CacheMode.PREFIX),
    ("llada", CacheMode.DUAL),
    ("sdar", CacheMode.NONE),
    ("sdar", CacheMode.BLOCK),
    ("llada2", CacheMode.BLOCK),
    *(
        pytest.param("dream", mode, marks=pytest.mark.slow)
        for mode in (CacheMode.NONE, CacheMode.PREFIX, CacheMode.DUAL)
    ),
]


@cache
def runner(family: str, cached: bool) -> Runner:
    return Runner(load(COPY / family / "seed1", torch.float32, torch.device("cpu"), WHOLE), 1024 if cached else 0)


def engine(family: str, mode: CacheMode) -> Engine:
    return Engine(runner(family, mode is not CacheMode.NONE), mode, EngineLimits(1024, 8), "test-1")


def decode(
    family: str, mode: CacheMode, threshold: float, temperature: float, moves: frozenset[int] = frozenset()
) -> Decode:
    """Decode one request; before each step whose number is in `moves` it moves to an empty instance."""
    config = runner(family, mode is not CacheMode.NONE).config
    prompt = [token for token in range(7, 19) if token != config.mask_token_id]
    cached = mode is not CacheMode.NONE
    aligned = config.is_block_causal
    length = OUTPUT + -(len(prompt) + OUTPUT) % BLOCK if aligned else OUTPUT
    own = Decode(1, prompt, length, BLOCK, threshold, config.mask_token_id, temperature, 3, cached, aligned)
    running = engine(family, mode)
    while not own.done:
        jobs = jobs_for([own])
        if len(own.trace) in moves:
            running = engine(family, mode)
            jobs.states.append(own.state)
        results = run_step(running, jobs)
        assert not results.failures
        read_results(results, [own])
    return own


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

    def confidences(*, moves: bool) -> list[list[list[float]]]:
        decodes = [Decode(ticket, [7, 8, ticket], OUTPUT, BLOCK, 0.9, mask, cached=True) for ticket in (1, 2)]
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
        return [decode.confidences for decode in decodes]

    assert confidences(moves=True) == confidences(moves=False)


@pytest.mark.parametrize(("family", "mode"), CASES)
@given(
    threshold=st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.5, 0.9]),
    temperature=st.sampled_from([0.0, 0.7]),
    moves=st.frozensets(st.integers(1, OUTPUT), max_size=6),
)
@settings(max_examples=8)
def test_a_request_that_moves_gets_the_same_text(
    family: str, mode: CacheMode, threshold: float, temperature: float, moves: frozenset[int]
) -> None:
    stays = decode(family, mode, threshold, temperature)
    moved = decode(family, mode, threshold, temperature, moves)
    assert moved.trace == stays.trace
    assert moved.confidences == stays.confidences
    assert moved.stats == stays.stats
