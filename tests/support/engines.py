"""Engines of a random model, and golden cases that engines decode as the reference does."""

from functools import cache

import msgspec
import pytest
import torch

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.offline_decoder import RequestTrace
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import ModelRunner, Runner, TokenPredictions
from services.worker.patterns.pattern_cache import PatternSource
from shared.arrays import unpack_int64
from shared.messages.steps import StepFailure, StepResults
from tests.support.golden import GoldenCase
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, decode_together, jobs_for, run_step

CONFIDENCE_ATOL = 2e-4  # fp32, the bound published with the vectors
MODES = {"none": CacheMode.NONE, "none-block": CacheMode.NONE, "prefix": CacheMode.PREFIX, "dual": CacheMode.DUAL}


@cache
def random_runner(cache_tokens: int = 1024) -> Runner:
    """For tests that leave it as it is."""
    return Runner(random_decoder(), cache_tokens)


class SmallDevice(Runner):
    """A device with little memory: it runs out at the end of a forward of more than `room` tokens."""

    room = 50

    def _run(self, batch: ForwardBatch) -> TokenPredictions:
        found = super()._run(batch)
        if len(batch.tokens) > self.room:
            raise torch.OutOfMemoryError("too large")
        return found


def engine_of(
    mode: CacheMode = CacheMode.NONE,
    *,
    runner: Runner | None = None,
    tokens: int = 4096,
    requests: int = 64,
    patterns: PatternSource | None = None,
) -> Engine:
    limits = EngineLimits(tokens=tokens, requests=requests)
    return Engine(runner or random_runner(), mode, limits, "test-1", patterns=patterns)


def tickets(results: StepResults | None) -> list[int]:
    """In the order of the message."""
    assert results is not None
    ran: list[int] = unpack_int64(results.tickets).tolist()
    return ran


def failure_of(change: dict[str, object]) -> StepFailure:
    """That of a request with an invalid state, beside which another one runs."""
    good, bad = (Decode(ticket, [5, 6, 7, 8, 9], 32, 16, 0.9, MASK_ID) for ticket in (1, 2))
    states = [good.state, msgspec.structs.replace(bad.state, **change)]
    results = run_step(engine_of(), msgspec.structs.replace(jobs_for([good, bad]), states=states))
    assert tickets(results) == [1]
    [failure] = results.failures
    assert failure.ticket == 2
    return failure


def decode_cases(cases: list[GoldenCase], runner: ModelRunner) -> list[Decode]:
    """Decode all cases in one batch; they share one cache mode."""
    mode, mask_id = MODES[cases[0].mode], runner.config.mask_token_id
    engine = Engine(runner, mode, EngineLimits(tokens=8192, requests=64), "test-1")
    cached = mode is not CacheMode.NONE
    decodes = [
        Decode(i, case.prompt, len(case.output), case.block_length, case.threshold, mask_id, cached=cached)
        for i, case in enumerate(cases)
    ]
    decode_together(engine, decodes)
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


def assert_trace(trace: RequestTrace, case: GoldenCase) -> None:
    """As `assert_traces`, also of steps that change tokens."""
    assert (trace.output_ids, trace.nfe) == (case.output, case.nfe), case.name
    if case.edit_threshold is None:
        assert [step.block for step in trace.steps] == [block for block, *_ in case.block_steps], case.name
    for own, step in zip(trace.steps, case.steps, strict=True):
        changed = dict(zip(step["unmask_pos"], step["unmask_id"], strict=True))
        changed |= dict(zip(step.get("edit_pos", []), step.get("edit_id", []), strict=True))
        known = dict(zip(step["cand_pos"], step["cand_conf"], strict=True))
        known |= dict(zip(step.get("edit_cand_pos", []), step.get("edit_cand_conf", []), strict=True))
        positions = sorted(changed)
        assert [position + len(case.prompt) for position in own.positions] == positions, case.name
        assert own.tokens == [changed[position] for position in positions], case.name
        assert own.confidences == pytest.approx([known[p] for p in positions], abs=CONFIDENCE_ATOL), case.name
