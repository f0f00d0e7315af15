"""The engine: the jobs it runs together, by iteration, and those it rejects; batching does not change results."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine
from services.worker.engine.step_jobs import MessageDeduplicator
from services.worker.model.model_runner import Runner
from shared.arrays import pack_float32, pack_int32, pack_int64, unpack_int32, unpack_int64
from shared.errors import BadInput
from shared.messages.steps import StepJobs, StepKind
from shared.pinned import FREE
from tests.support.engines import engine_of, failure_of, tickets
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, decode_together, jobs_for, run_step

LABELS = {"choices": [pack_int32([5, 6]), pack_int32([9])], "end_ids": pack_int32([1, 2])}


def request(ticket: int, *, prompt: int = 5, output: int = 32, block: int = 16, threshold: float = 0.6) -> Decode:
    rng = np.random.default_rng(ticket)
    return Decode(ticket, rng.integers(0, 50, prompt).tolist(), output, block, threshold, MASK_ID)


HAS_BFLOAT16 = torch.cpu.get_capabilities().get("avx512_bf16")


@pytest.mark.parametrize("mode", CacheMode)
@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [
        (torch.float32, 0.0),
        (torch.float32, 0.8),
        pytest.param(
            torch.bfloat16, 0.0, marks=pytest.mark.skipif(not HAS_BFLOAT16, reason="this CPU has no bfloat16")
        ),
    ],
)
def test_a_request_decodes_the_same_in_a_batch_as_alone(
    mode: CacheMode, dtype: torch.dtype, temperature: float
) -> None:
    runner = Runner(random_decoder(dtype), cache_tokens=1024)
    together, alone = several(mode, temperature), several(mode, temperature)
    decode_together(engine_of(mode, runner=runner), together)
    for decode in alone:
        decode_together(engine_of(mode, runner=runner), [decode])
    assert [d.trace for d in together] == [d.trace for d in alone]
    assert [d.confidences for d in together] == [d.confidences for d in alone]  # the same bits


def several(mode: CacheMode, temperature: float) -> list[Decode]:
    decodes = [request(t, prompt=3 + t % 4, output=16 * (1 + t % 3)) for t in range(4)]
    for decode in decodes:
        decode.temperature, decode.seed = temperature, decode.ticket + 7
        decode.cached = mode is not CacheMode.NONE
    return decodes


def test_a_batch_keeps_the_limits_and_the_rest_keeps_its_order() -> None:
    engine = engine_of(tokens=80, requests=3)
    decodes = [request(t, prompt=4, output=32) for t in range(4)]
    assert tickets(run_step(engine, jobs_for(decodes))) == [0, 1]
    assert engine.waiting
    assert tickets(engine.iterate()) == [2, 3]
    assert not engine.waiting


def test_a_request_larger_than_a_batch_runs_alone_and_its_tokens_are_known() -> None:
    engine = engine_of(tokens=8)
    assert tickets(run_step(engine, jobs_for([request(1, prompt=4, output=32)]))) == [1]
    assert engine.batch_tokens == 36


def test_a_rejected_job_does_not_hide_the_other_one_of_its_request() -> None:
    engine, zeros = engine_of(), pack_int32([0] * 3)
    columns = {"steps": zeros, "blocks": zeros, "kinds": zeros, "thresholds": pack_float32([1.5, 0.6, 0.6])}
    jobs = msgspec.structs.replace(jobs_for([request(1), request(2)]), tickets=pack_int64([1, 1, 2]), **columns)
    results = run_step(engine, jobs)
    assert [failure.ticket for failure in results.failures] == [1]
    assert (sorted(tickets(results)), len(unpack_int32(results.counts))) == ([1, 2], 2)


def test_older_tickets_are_dropped_except_those_with_a_new_state() -> None:
    engine, decodes = engine_of(), [request(t) for t in (1, 2, 3)]
    run_step(engine, jobs_for(decodes))
    again = msgspec.structs.replace(jobs_for([request(2), request(9)]), forget_below=9)
    assert tickets(run_step(engine, again)) == [2, 9]
    assert engine.num_resident == 2
    results = run_step(engine, msgspec.structs.replace(jobs_for([request(1)]), states=[]))
    assert unpack_int64(results.missing).tolist() == [1]


@pytest.mark.parametrize(
    ("change", "complaint", "field"),
    [
        ({"canvas": b"abc"}, "int32", None),
        ({"canvas": pack_int32([1] * 20)}, "whole blocks", None),
        ({"canvas": pack_int32([1] * 5 + [64] * 16)}, "0..63", None),
        ({"canvas": pack_int32([-1] * 5 + [MASK_ID] * 16)}, "0..63", None),
        ({"canvas": pack_int32([1] * 5 + [MASK_ID] * 160)}, "at most 128", None),
        ({"prompt_length": 0}, "prompt_length", None),
        ({"block_length": 0}, "block_length must be at least 1", "block_length"),
        ({"temperature": float("nan")}, "temperature", "temperature"),
        ({"pinned": b"abc"}, "pinned must be int32", "pinned"),
        ({"pinned": pack_int32([FREE, 7])}, "the output lacks a pinned token", "pinned"),
        ({"pinned": pack_int32([FREE] * 100)}, "the output lacks a pinned token", "pinned"),
        ({"pinned": pack_int32([FREE]), "edit_threshold": 0.5}, "change in an output with pinned", "edit_threshold"),
        ({"top_logprobs": 21}, "top_logprobs must be in 0..20", "top_logprobs"),
        ({"top_p": 1.1}, "top_p", "top_p"),
        ({"top_p": float("nan")}, "top_p", "top_p"),
        ({"top_k": 2**63}, "top_k", "top_k"),
        ({"min_p": -0.1}, "min_p", "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty", "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "repetition_penalty"),
        ({"logit_bias": {1: 101.0}}, "logit_bias", None),
        ({"logit_bias": {-1: 1.0}}, "logit_bias", "logit_bias"),
        ({**LABELS, "pattern": "a"}, "without a pattern", "choices"),
        ({**LABELS, "end_ids": b""}, "ends at end tokens", "choices"),
        ({**LABELS, "choices": [b""]}, "choices must have tokens", "choices"),
        ({**LABELS, "choices": [pack_int32([64])]}, "in 0..63", "choices"),
        ({**LABELS, "choices": [b"abc"]}, "int32", "choices"),
    ],
)
def test_an_invalid_state_fails_only_its_request(change: dict[str, object], complaint: str, field: str | None) -> None:
    failure = failure_of(change)
    assert complaint in failure.message
    assert failure.field == field  # of the request


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"thresholds": pack_float32([1.5])}, "threshold"),
        ({"thresholds": pack_float32([float("nan")])}, "threshold"),
        ({"kinds": pack_int32([2])}, "kind"),
        ({"blocks": pack_int32([2])}, "0..1"),
        ({"blocks": pack_int32([-1])}, "0..1"),
    ],
)
def test_an_invalid_job_fails(change: dict[str, bytes], complaint: str) -> None:
    results = run_step(engine_of(), msgspec.structs.replace(jobs_for([request(1)]), **change))
    assert complaint in results.failures[0].message


def test_no_block_begins_after_the_one_in_which_the_text_ends() -> None:
    decode = request(1, threshold=0.0)
    results = run_step(engine_of(), ahead_into_the_next_block(decode))
    [*_, written] = unpack_int32(results.tokens).tolist()
    for end_id, continues in ((written, False), (MASK_ID, True)):
        engine, jobs = engine_of(), ahead_into_the_next_block(request(1, threshold=0.0))
        [state] = jobs.states
        state = msgspec.structs.replace(state, end_ids=pack_int32([end_id]))
        run_step(engine, msgspec.structs.replace(jobs, states=[state]))
        assert (engine.iterate() is not None) is continues


def ahead_into_the_next_block(decode: Decode) -> StepJobs:
    """The first step, the second one, and the second one again as the first of the next block."""
    return msgspec.structs.replace(
        jobs_for([decode]),
        tickets=pack_int64([decode.ticket] * 3),
        steps=pack_int32([0, 1, 1]),
        blocks=pack_int32([0, 0, 1]),
        thresholds=pack_float32([decode.threshold] * 3),
        kinds=pack_int32([StepKind.RECOMPUTE, StepKind.CACHE if decode.cached else StepKind.RECOMPUTE, 0]),
    )


@pytest.mark.parametrize("change", [{"steps": b""}, {"tickets": b"123"}, {"drops": b"1"}, {"thresholds": b"12345678"}])
def test_columns_of_unequal_length_are_rejected(change: dict[str, bytes]) -> None:
    with pytest.raises(BadInput, match="columns"):
        engine_of().accept(msgspec.structs.replace(jobs_for([request(1)]), **change))


def test_a_redelivered_message_is_recognized() -> None:
    deduplicator = MessageDeduplicator()
    messages = [StepJobs(epoch=epoch, number=number) for epoch, number in ((1, 1), (1, 2), (2, 1))]
    assert [deduplicator.add(message) for message in [*messages, *messages]] == [True] * 3 + [False] * 3
    assert [deduplicator.add(StepJobs(epoch=1)) for _ in range(2)] == [True, True]  # unnumbered


def numbered(decodes: Sequence[Decode], *batches: int, step: int = 0) -> StepJobs:
    """The steps `step` of these requests, for these iterations; the first ones bring the states."""
    jobs = jobs_for(list(decodes))
    steps, states = pack_int32([step] * len(decodes)), [] if step else jobs.states
    return msgspec.structs.replace(jobs, steps=steps, states=states, batches=pack_int32(batches))


def iterations(engine: Engine) -> list[list[int]]:
    """The tickets of each iteration until none is left."""
    return [sorted(tickets(results)) for results in iter(engine.iterate, None)]


def test_jobs_of_a_later_iteration_wait() -> None:
    engine = engine_of()
    engine.accept(numbered([request(t) for t in range(4)], 2, 1, 2, 1))
    assert iterations(engine) == [[1, 3], [0, 2]]


def test_jobs_that_come_late_for_their_iteration_run_in_the_next_one() -> None:
    engine = engine_of()
    first, late = request(1), request(2)
    engine.accept(numbered([first], 1))
    assert iterations(engine) == [[1]]
    engine.accept(numbered([first], 2, step=1))
    engine.accept(numbered([first], 3, step=2))
    engine.accept(numbered([late], 1))
    assert iterations(engine) == [[1, 2], [1]]


def test_an_iteration_without_a_job_that_can_run_is_passed_over() -> None:
    """Its requests are dropped, unknown, or past this step."""
    engine = engine_of()
    dropped, repeated, good = (request(t) for t in range(3))
    engine.accept(numbered([dropped, repeated], 1, 1))
    assert iterations(engine) == [[0, 1]]
    engine.accept(numbered([dropped], 2, step=1))
    engine.accept(msgspec.structs.replace(numbered([repeated], 3), states=[]))
    engine.accept(msgspec.structs.replace(numbered([request(7)], 4), states=[]))
    results = run_step(engine, msgspec.structs.replace(numbered([good], 5), drops=pack_int64([0])))
    assert (tickets(results), unpack_int64(results.missing).tolist()) == ([2], [7])
    assert not engine.waiting


def test_an_obsolete_job_does_not_hold_up_the_next_iteration() -> None:
    """At threshold 0 the first step ends the block, so the step sent ahead has nothing to run."""
    engine = engine_of()
    ends, goes_on = request(1, threshold=0.0), request(2)
    engine.accept(numbered([ends], 1))
    engine.accept(numbered([ends], 2, step=1))
    engine.accept(numbered([goes_on], 3))
    assert iterations(engine) == [[1], [2]]


def test_jobs_without_a_number_run_in_any_iteration() -> None:
    engine = engine_of()
    engine.accept(numbered([request(1)], 5))
    engine.accept(jobs_for([request(2)]))
    engine.accept(numbered([request(3)], 6))
    assert iterations(engine) == [[2], [1], [3]]
    engine.accept(jobs_for([request(4), request(5)]))
    assert iterations(engine) == [[4, 5]]


def test_jobs_of_an_iteration_that_exceed_its_limits_go_first_in_the_next_one() -> None:
    engine = engine_of(requests=2)
    engine.accept(numbered([request(t) for t in range(4)], 1, 1, 1, 2))
    assert iterations(engine) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("change", [{"epoch": 2}, {"forget_below": 1}], ids=["fail-over", "registered again"])
def test_iterations_are_counted_again_for_another_scheduler_or_registration(change: dict[str, int]) -> None:
    engine = engine_of()
    engine.accept(numbered([request(1)], 9))
    assert iterations(engine) == [[1]]
    engine.accept(msgspec.structs.replace(numbered([request(2), request(3)], 1, 2), **change))
    assert iterations(engine) == [[2], [3]]


def test_a_message_whose_iteration_numbers_do_not_fit_its_jobs_is_refused() -> None:
    with pytest.raises(BadInput, match="do not fit together"):
        engine_of().accept(numbered([request(1)], 1, 2))
