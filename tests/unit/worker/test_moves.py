"""A request that moves to another instance gets the same text as one that stays."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.cache.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.model.decoder import WHOLE
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from tests.support.golden import COPY
from tests.support.steps import Decode, jobs_for, read_results

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
        running.accept(jobs)
        results = running.iterate()
        assert results is not None
        assert not results.failures
        read_results(results, [own])
    return own


@pytest.mark.parametrize(("family", "mode"), CASES)
@given(
    threshold=st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.5, 0.9]),
    temperature=st.sampled_from([0.0, 0.7]),
    moves=st.frozensets(st.integers(1, OUTPUT), max_size=6),
)
@settings(max_examples=25)
def test_a_request_that_moves_gets_the_same_text(
    family: str, mode: CacheMode, threshold: float, temperature: float, moves: frozenset[int]
) -> None:
    stays = decode(family, mode, threshold, temperature)
    moved = decode(family, mode, threshold, temperature, moves)
    assert moved.trace == stays.trace
    assert moved.confidences == stays.confidences
