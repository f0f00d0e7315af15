"""Decodes golden cases on an engine and compares the result with the reference."""

import pytest

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.model.model_runner import ModelRunner
from tests.support.golden import GoldenCase
from tests.support.steps import Decode, jobs_for, read_results

CONFIDENCE_ATOL = 2e-4  # fp32, the bound published with the vectors
MODES = {"none": CacheMode.NONE, "none-block": CacheMode.NONE, "prefix": CacheMode.PREFIX, "dual": CacheMode.DUAL}


def decode_cases(cases: list[GoldenCase], runner: ModelRunner) -> list[Decode]:
    """Decode all cases in one batch; they share one cache mode."""
    mode, mask_id = MODES[cases[0].mode], runner.config.mask_token_id
    engine = Engine(runner, mode, EngineLimits(tokens=8192, requests=64), "test-1")
    cached = mode is not CacheMode.NONE
    decodes = [
        Decode(i, case.prompt, len(case.output), case.block_length, case.threshold, mask_id, cached=cached)
        for i, case in enumerate(cases)
    ]
    while left := [d for d in decodes if not d.done]:
        engine.accept(jobs_for(left))
        results = engine.iterate()
        assert results is not None
        read_results(results, left)
    return decodes


def assert_traces(decodes: list[Decode], cases: list[GoldenCase]) -> None:
    """Compare positions, tokens and order exactly, confidences within CONFIDENCE_ATOL."""
    for decode, case in zip(decodes, cases, strict=True):
        assert decode.output.tolist() == case.output, case.name
        assert decode.trace == case.block_steps, case.name
        assert len(decode.trace) == case.nfe, case.name
        for own, step in zip(decode.confidences, case.steps, strict=True):
            known = dict(zip(step["cand_pos"], step["cand_conf"], strict=True))
            assert own == pytest.approx([known[p] for p in step["unmask_pos"]], abs=CONFIDENCE_ATOL), case.name
