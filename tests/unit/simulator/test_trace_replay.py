"""Replayed requests in place of the unmasking model."""

import numpy as np
import pytest

from dilaserve.stack.up_options import DEMO_MODEL
from services.predictor.model import load_predictor
from services.scheduler.settings import SchedulerSettings
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.scenario import Scenario, simulate
from simulator.steps_table import StepsTable
from simulator.trace_replay import Canvas, ReplayedConfidences, ReplayModel
from simulator.unmasking_model import hundredths_of
from simulator.workload import make_trace

# Two blocks of four. In the first a hard rest is left; the second is padding.
EASY_THEN_HARD = [
    Canvas(8, np.array([0.95, 0.95, 0.4, 0.3])),
    Canvas(6, np.array([0.6, 0.4])),
    Canvas(5, np.array([0.8])),
    Canvas(4, np.array([1.0, 1.0, 1.0, 1.0])),
]
PADDING = [Canvas(8, np.ones(4)), Canvas(4, np.ones(4))]
RECORDED = ReplayModel([EASY_THEN_HARD, PADDING], output_length=8, block_length=4)


def unmasked(level: int, threshold: float, left: int) -> int:
    at = hundredths_of(np.array([threshold]))
    return int(RECORDED.unmask(np.random.default_rng(0), np.array([level]), at, np.array([left]))[0])


def test_a_step_unmasks_tokens_at_the_threshold_and_at_least_one() -> None:
    assert [unmasked(0, 0.9, left) for left in (8, 6, 5, 4)] == [2, 1, 1, 4]
    assert [unmasked(0, threshold, 8) for threshold in (0.3, 0.4, 0.5)] == [4, 3, 2]
    assert [unmasked(1, 1.0, left) for left in (8, 4)] == [4, 4]


def test_unrecorded_numbers_of_masks_use_the_nearest_recorded_in_the_block() -> None:
    assert unmasked(0, 0.5, 7) == 2  # of three masks as many as of two, of which half reached 0.5
    assert unmasked(0, 0.9, 3) == 3


def test_steps_left_are_the_steps_that_the_request_takes() -> None:
    steps_left = RECORDED.steps_left(hundredths_of(np.array([0.3, 0.9])))
    assert steps_left(np.array([0, 0, 1]), np.array([8, 5, 8])).tolist() == [[2, 4], [2, 2], [2, 2]]


def test_confidences_of_unmasked_tokens_are_kept() -> None:
    known = ReplayedConfidences(RECORDED, requests=2)
    random, nine = np.random.default_rng(0), hundredths_of(np.array([0.9]))
    counts, stats = known.unmask(random, np.array([1]), np.array([0]), nine, np.array([8]))
    assert counts.tolist() == [2]
    assert stats[0, [0, 3]].tolist() == pytest.approx([0.3, (0.95 + 0.95 + 0.4 + 0.3) / 4])  # the least, the mean
    counts, stats = known.unmask(random, np.array([1]), np.array([0]), nine, np.array([6]))
    assert counts.tolist() == [1]
    assert stats[0, [0, 3]].tolist() == pytest.approx([0.4, (0.95 + 0.95 + 0.6 + 0.4) / 4])


@pytest.mark.parametrize(("slo_s", "steps"), [(10.0, 3), (0.1, 2)])
def test_a_simulated_request_repeats_the_recorded_one(slo_s: float, steps: int) -> None:
    """In two steps for the first block at a threshold of 0.9, in one at 0.5."""
    profile = LatencyProfile.from_rows([(1, 32, kind, 0.01) for kind in StepKind])
    recorded = [Canvas(64, np.repeat([0.95, 0.6], 16)), Canvas(48, np.full(16, 0.95)), Canvas(32, np.ones(32))]
    scenario = Scenario(
        profile=profile,
        steps=StepsTable(np.array([0.5, 0.9]), np.array([32.0, 21.0])),
        replay=ReplayModel([recorded], output_length=64),
        predictor="trained",
        live=load_predictor(DEMO_MODEL / "predictor"),
        instances=(1,),
        settings=SchedulerSettings(model="m", policy="dilaserve", cache="dual", thresholds=(0.5, 0.9)),
        slo_s=slo_s,
    )
    records = simulate(scenario, make_trace(np.array([0.0]), np.array([20]), np.array([64])))
    assert records.steps.tolist() == [steps]
