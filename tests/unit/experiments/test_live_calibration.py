"""The calibration of a simulation by a live cluster."""

from dataclasses import replace

import pytest

from experiments.live_calibration import ServedRequest, charge_s, fit_message_s, fit_profile, fit_steps, read, slower
from experiments.live_iterations import RecordedIteration, Recording, canvases, iterations
from shared.arrays import pack_float32, pack_int32, pack_int64
from shared.errors import BadInput
from shared.messages.requests import Guesses
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults


def served(steps: int = 9, output: int = 32, latency_s: float = 1.0, computing_s: float = 1.0) -> ServedRequest:
    return ServedRequest("a", 100, output, latency_s, True, 0.9, steps, computing_s)


def iteration(cached: int, recomputed: int) -> RecordedIteration:
    """A launch of 10 ms, 2 ms for each cache step, 3 ms more if steps recompute and 0.1 ms for each of their tokens."""
    tokens = 120 * recomputed
    return RecordedIteration(
        cached, recomputed, tokens, 0.010 + 0.002 * cached + 0.003 * (recomputed > 0) + 0.0001 * tokens
    )


def test_the_fitted_profile_gives_the_measured_latencies() -> None:
    run = [iteration(*steps) for steps in ((1, 0), (8, 0), (0, 1), (0, 3), (2, 1), (5, 2))]
    profile, launch_s = fit_profile(run)
    assert launch_s == pytest.approx(0.010)
    assert profile.latency_s(1, 32.0, StepKind.CACHE) == pytest.approx(0.012)
    assert profile.latency_s(1, 8 * 32.0, StepKind.CACHE) == pytest.approx(0.026)
    assert profile.latency_s(1, 120.0, StepKind.RECOMPUTE) == pytest.approx(0.025)
    assert [charge_s(one, profile, launch_s) for one in run] == pytest.approx([one.computing_s for one in run])


def test_a_slower_machine_does_not_change_the_profile_but_the_share() -> None:
    before = [iteration(*steps) for steps in ((1, 0), (8, 0), (0, 1), (0, 3), (2, 1), (5, 2))]
    ran = [replace(one, computing_s=1.25 * one.computing_s) for one in before]
    assert slower(ran, *fit_profile(before)) == pytest.approx(0.25)
    assert slower(ran, *fit_profile(before, 0.25)) == pytest.approx(0.0)


def test_a_lone_request_waits_only_for_its_steps_and_messages() -> None:
    alone = [served(steps=9, latency_s=1.019, computing_s=1.0), served(steps=4, latency_s=0.509, computing_s=0.5)]
    assert fit_message_s(alone) == pytest.approx(0.001)


def test_tokens_per_step_never_rise_with_the_threshold() -> None:
    table = fit_steps({0.5: [served(steps=8)], 0.7: [served(steps=4)], 0.9: [served(steps=16)]})
    assert table.thresholds.tolist() == [0.5, 0.7, 0.9]
    assert table.tokens_per_step.tolist() == [4.0, 4.0, 2.0]


def test_a_request_is_parsed_from_the_gateway_s_record() -> None:
    steps = [{"block": i // 2} for i in range(4)]
    how = {"latency_ms": 50.0, "step_ms": 40.0, "slo_met": True, "mean_threshold": 0.8}
    one = read({"id": "b", "status": "completed", "steps": steps, "dilaserve": how, "usage": {"prompt_tokens": 7}})
    assert (one.request_id, one.steps, one.output_tokens, one.prompt_tokens) == ("b", 4, 64, 7)
    assert (one.latency_s, one.computing_s) == (0.05, 0.04)


def test_a_failed_request_is_an_error() -> None:
    with pytest.raises(BadInput, match="failed"):
        read({"id": "b", "status": "failed"})


def jobs_of(*steps: tuple[int, int, int, StepKind]) -> StepJobs:
    """Jobs (ticket, step, block, kind)."""
    tickets, numbers, blocks, kinds = zip(*steps, strict=True)
    return StepJobs(
        epoch=1,
        tickets=pack_int64(tickets),
        steps=pack_int32(numbers),
        blocks=pack_int32(blocks),
        kinds=pack_int32(kinds),
    )


def results_of(*steps: tuple[int, int, int]) -> StepResults:
    """Results (ticket, step, position) of steps that unmask one token each."""
    tickets, numbers, positions = zip(*steps, strict=True) if steps else ((), (), ())
    return StepResults(
        instance_id="a",
        epoch=1,
        tickets=pack_int64(tickets),
        steps=pack_int32(numbers),
        counts=pack_int32([1] * len(steps)),
        positions=pack_int32(positions),
        batch_tokens=150,
        latency_s=0.02,
    )


def test_iterations_are_parsed_from_jobs_and_results() -> None:
    """An iteration without a recorded job is left out."""
    jobs = jobs_of((7, 0, 0, StepKind.RECOMPUTE), (8, 3, 1, StepKind.CACHE))
    run = iterations([jobs], [results_of((7, 0, 5), (8, 3, 40)), results_of((7, 1, 6), (8, 4, 41)), results_of()])
    assert run == [RecordedIteration(cached=1, recomputed=1, recomputed_tokens=118, computing_s=0.02)]


def test_of_two_jobs_with_one_step_number_the_one_of_the_result_s_block_counts() -> None:
    jobs = [jobs_of((7, 3, 0, StepKind.CACHE)), jobs_of((7, 3, 1, StepKind.RECOMPUTE))]
    for position, recomputed in ((31, 0), (32, 1)):
        [one] = iterations(jobs, [results_of((7, 3, position))])
        assert (one.cached, one.recomputed) == (1 - recomputed, recomputed)


def test_canvases_are_parsed_from_results_and_guesses() -> None:
    """A step's confidences are those of its unmasked tokens and of its guesses for the other masks."""
    state = RequestState(ticket=7, request_id="r", prompt_length=2, block_length=4, canvas=b"")

    def step(number: int, unmasked: list[float]) -> StepResults:
        return StepResults(
            instance_id="a",
            epoch=1,
            tickets=pack_int64([7]),
            steps=pack_int32([number]),
            counts=pack_int32([len(unmasked)]),
            confidences=pack_float32(unmasked),
        )

    def guesses(number: int, left: list[float]) -> Guesses:
        return Guesses(step=number, positions=b"", tokens=b"", confidences=pack_float32(left))

    recording = Recording(
        jobs=[StepJobs(epoch=1, states=[state])],
        results=[step(0, [0.75]), step(1, [0.5, 0.625]), step(2, [1.0])],
        guesses={("r", 0): guesses(0, [0.25, 0.5, 0.375]), ("r", 2): guesses(2, [])},
    )
    [first, last] = canvases(recording, 4)["r"]
    assert (first.left, first.confidences.tolist()) == (4, [0.75, 0.25, 0.5, 0.375])
    assert (last.left, last.confidences.tolist()) == (1, [1.0])
