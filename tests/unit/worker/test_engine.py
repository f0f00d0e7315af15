"""The engine: the jobs it runs together and those it rejects; batching does not change results."""

import msgspec
import numpy as np
import pytest
import torch

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.step_jobs import MessageDeduplicator
from services.worker.model.model_runner import Runner
from shared.arrays import pack_float32, pack_int32, pack_int64, unpack_int32, unpack_int64
from shared.errors import BadInput
from shared.messages.steps import StepJobs, StepKind, StepResults
from shared.pinned import FREE
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, decode_together, jobs_for, read_results, run_step


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(random_decoder(), cache_tokens=1024)


def engine_of(runner: Runner, *, mode: CacheMode = CacheMode.NONE, tokens: int = 4096, requests: int = 64) -> Engine:
    return Engine(runner, mode, EngineLimits(tokens=tokens, requests=requests), "test-1")


def request(ticket: int, *, prompt: int = 5, output: int = 32, block: int = 16, threshold: float = 0.6) -> Decode:
    rng = np.random.default_rng(ticket)
    return Decode(ticket, rng.integers(0, 50, prompt).tolist(), output, block, threshold, MASK_ID)


def tickets(results: StepResults) -> list[int]:
    return [int(ticket) for ticket in unpack_int64(results.tickets)]


def test_requests_of_different_lengths_and_steps_run_in_one_batch(runner: Runner) -> None:
    engine = engine_of(runner)
    first, second = request(1, prompt=3, output=48), request(2, prompt=20, output=16)
    read_results(run_step(engine, jobs_for([first])), [first])
    results = run_step(engine, jobs_for([first, second]))
    assert sorted(tickets(results)) == [1, 2]
    assert results.batch_tokens == 51 + 36


@pytest.mark.parametrize("mode", CacheMode)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_request_decodes_the_same_in_a_batch_as_alone(runner: Runner, mode: CacheMode, temperature: float) -> None:
    together, alone = several(mode, temperature), several(mode, temperature)
    decode_together(engine_of(runner, mode=mode), together)
    for decode in alone:
        decode_together(engine_of(runner, mode=mode), [decode])
    assert [d.trace for d in together] == [d.trace for d in alone]
    assert [d.confidences for d in together] == [d.confidences for d in alone]  # the same bits


@pytest.mark.skipif(not torch.cpu.get_capabilities().get("avx512_bf16"), reason="this CPU does not compute in bfloat16")
@pytest.mark.parametrize("mode", CacheMode)
def test_a_request_decodes_the_same_in_a_batch_in_bfloat16(mode: CacheMode) -> None:
    runner = Runner(random_decoder(torch.bfloat16), cache_tokens=1024)
    together, alone = several(mode, 0.0), several(mode, 0.0)
    decode_together(engine_of(runner, mode=mode), together)
    for decode in alone:
        decode_together(engine_of(runner, mode=mode), [decode])
    assert [d.trace for d in together] == [d.trace for d in alone]
    assert [d.confidences for d in together] == [d.confidences for d in alone]  # the same bits


def several(mode: CacheMode, temperature: float) -> list[Decode]:
    decodes = [request(t, prompt=3 + t % 4, output=16 * (1 + t % 3)) for t in range(6)]
    for decode in decodes:
        decode.temperature, decode.seed = temperature, decode.ticket + 7
        decode.cached = mode is not CacheMode.NONE
    return decodes


def test_a_batch_keeps_the_limits_and_the_rest_keeps_its_order(runner: Runner) -> None:
    engine = engine_of(runner, tokens=80, requests=3)
    decodes = [request(t, prompt=4, output=32) for t in range(4)]
    assert tickets(run_step(engine, jobs_for(decodes))) == [0, 1]
    assert engine.waiting
    rest = engine.iterate()
    assert rest is not None
    assert tickets(rest) == [2, 3]
    assert not engine.waiting


def test_a_request_larger_than_a_batch_runs_alone(runner: Runner) -> None:
    assert tickets(run_step(engine_of(runner, tokens=8), jobs_for([request(1)]))) == [1]


def test_two_steps_of_one_request_run_in_two_iterations(runner: Runner) -> None:
    engine = engine_of(runner)
    decode = request(1, threshold=1.0)
    engine.accept(jobs_for([decode]))
    ahead = msgspec.structs.replace(jobs_for([decode]), steps=pack_int32([1]), states=[])
    first = run_step(engine, ahead)
    second = engine.iterate()
    assert second is not None
    assert [unpack_int32(r.steps).tolist() for r in (first, second)] == [[0], [1]]


def test_a_step_that_ran_does_not_run_again(runner: Runner) -> None:
    engine = engine_of(runner)
    jobs = jobs_for([request(1)])
    run_step(engine, jobs)
    engine.accept(msgspec.structs.replace(jobs, states=[]))
    assert engine.iterate() is None


def test_a_job_without_a_state_is_reported_missing(runner: Runner) -> None:
    results = run_step(engine_of(runner), msgspec.structs.replace(jobs_for([request(7)]), states=[]))
    assert unpack_int64(results.missing).tolist() == [7]


def test_a_drop_removes_the_request_and_its_jobs(runner: Runner) -> None:
    engine = engine_of(runner)
    decode = request(1)
    engine.accept(jobs_for([decode]))
    engine.accept(StepJobs(epoch=1, drops=pack_int64([1])))
    assert engine.iterate() is None
    assert engine.num_resident == 0


def test_older_tickets_are_dropped_except_those_with_a_new_state(runner: Runner) -> None:
    engine, decodes = engine_of(runner), [request(t) for t in (1, 2, 3)]
    run_step(engine, jobs_for(decodes))
    again = msgspec.structs.replace(jobs_for([request(2), request(9)]), forget_below=9)
    assert tickets(run_step(engine, again)) == [2, 9]
    assert engine.num_resident == 2
    results = run_step(engine, msgspec.structs.replace(jobs_for([request(1)]), states=[]))
    assert unpack_int64(results.missing).tolist() == [1]


def test_a_state_replaces_an_older_one_of_the_same_ticket(runner: Runner) -> None:
    here, there = engine_of(runner), engine_of(runner)
    stayed, moved = request(1, threshold=1.0), request(1, threshold=1.0)
    decode_together(engine_of(runner), [stayed])
    for engine in (here, there, here):  # the drop on leaving `here` is lost
        read_results(run_step(engine, msgspec.structs.replace(jobs_for([moved]), states=[moved.state])), [moved])
    decode_together(here, [moved])
    assert (moved.trace, here.num_resident) == (stayed.trace, 1)


def test_jobs_of_a_superseded_scheduler_are_rejected(runner: Runner) -> None:
    engine = engine_of(runner)
    run_step(engine, jobs_for([request(1)], epoch=3))
    engine.accept(jobs_for([request(2)], epoch=2))
    assert engine.iterate() is None
    assert engine.num_resident == 1


def test_jobs_of_a_new_scheduler_drop_all_requests(runner: Runner) -> None:
    engine = engine_of(runner)
    run_step(engine, jobs_for([request(1), request(2)], epoch=1))
    results = run_step(engine, jobs_for([request(1)], epoch=2))
    assert (results.epoch, tickets(results), engine.num_resident) == (2, [1], 1)


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
    ],
)
def test_an_invalid_state_fails_only_its_request(
    runner: Runner, change: dict[str, object], complaint: str, field: str | None
) -> None:
    good, bad = request(1), request(2)
    jobs = jobs_for([good, bad])
    broken = msgspec.structs.replace(bad.state, **change)
    results = run_step(engine_of(runner), msgspec.structs.replace(jobs, states=[good.state, broken]))
    assert tickets(results) == [1]
    assert [(failure.ticket, failure.field) for failure in results.failures] == [(2, field)]  # of the request
    assert complaint in results.failures[0].message


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
def test_an_invalid_job_fails(runner: Runner, change: dict[str, bytes], complaint: str) -> None:
    results = run_step(engine_of(runner), msgspec.structs.replace(jobs_for([request(1)]), **change))
    assert complaint in results.failures[0].message


def test_a_step_sent_ahead_is_skipped_if_its_block_has_ended(runner: Runner) -> None:
    engine, decode = engine_of(runner), request(1, threshold=1.0)  # one token per step
    message = jobs_for([decode])
    engine.accept(message)
    for ahead in range(1, 20):
        engine.accept(msgspec.structs.replace(message, steps=pack_int32([ahead]), states=[]))
        results = engine.iterate()
        if ahead > 16:  # the block's length
            assert results is None
        else:
            assert results is not None
            assert not results.failures
            read_results(results, [decode])
    assert (decode.output[:16] != MASK_ID).all()


@pytest.mark.parametrize("mode", [CacheMode.NONE, CacheMode.DUAL])
def test_of_two_jobs_with_one_step_number_the_first_not_skipped_runs(runner: Runner, mode: CacheMode) -> None:
    engine, decode = engine_of(runner, mode=mode), request(1, threshold=0.0)  # one block per step
    decode.cached = mode is not CacheMode.NONE
    read_results(run_step(engine, ahead_into_the_next_block(decode)), [decode])
    results = engine.iterate()
    assert results is not None
    assert unpack_int32(results.steps).tolist() == [1]
    read_results(results, [decode])
    assert decode.done
    assert engine.iterate() is None


def test_a_job_of_the_next_block_is_skipped_before_the_block_ends(runner: Runner) -> None:
    engine, decode = engine_of(runner), request(1, threshold=1.0)  # one token per step
    run_step(engine, ahead_into_the_next_block(decode))
    results = engine.iterate()
    assert results is not None
    assert unpack_int32(results.positions)[0] < decode.block_length
    assert engine.iterate() is None


def test_no_block_begins_after_the_one_in_which_the_text_ends(runner: Runner) -> None:
    decode = request(1, threshold=0.0)
    results = run_step(engine_of(runner), ahead_into_the_next_block(decode))
    [*_, written] = unpack_int32(results.tokens).tolist()
    for end_id, continues in ((written, False), (MASK_ID, True)):
        engine, jobs = engine_of(runner), ahead_into_the_next_block(request(1, threshold=0.0))
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
def test_columns_of_unequal_length_are_rejected(runner: Runner, change: dict[str, bytes]) -> None:
    with pytest.raises(BadInput, match="columns"):
        engine_of(runner).accept(msgspec.structs.replace(jobs_for([request(1)]), **change))


def test_confidence_statistics_cover_unmasked_tokens_and_the_block(runner: Runner) -> None:
    engine, decode = engine_of(runner), request(1, output=16, threshold=1.0)
    decode_together(engine, [decode])
    last = [c for step in decode.confidences for c in step]
    assert decode.stats[-1][0] == pytest.approx(min(last))
    assert decode.stats[-1][3] == pytest.approx(np.mean(last), abs=1e-5)


def test_a_redelivered_message_is_recognized() -> None:
    deduplicator = MessageDeduplicator()
    messages = [StepJobs(epoch=epoch, number=number) for epoch, number in ((1, 1), (1, 2), (2, 1))]
    assert [deduplicator.add(message) for message in [*messages, *messages]] == [True] * 3 + [False] * 3
    assert [deduplicator.add(StepJobs(epoch=1)) for _ in range(2)] == [True, True]  # unnumbered
