"""Recorded requests in place of the model of denoising."""

import numpy as np

from simulator.denoising import hundredths_of
from simulator.recorded import Canvas, Recorded

# Two blocks of four. In the first a hard rest is left; the second is padding.
EASY_THEN_HARD = [
    Canvas(8, np.array([0.95, 0.95, 0.4, 0.3])),
    Canvas(6, np.array([0.6, 0.4])),
    Canvas(5, np.array([0.8])),
    Canvas(4, np.array([1.0, 1.0, 1.0, 1.0])),
]
PADDING = [Canvas(8, np.ones(4)), Canvas(4, np.ones(4))]
RECORDED = Recorded([EASY_THEN_HARD, PADDING], output_length=8, block_length=4)


def unmasked(level: int, threshold: float, left: int) -> int:
    at = hundredths_of(np.array([threshold]))
    return int(RECORDED.unmask(np.random.default_rng(0), np.array([level]), at, np.array([left]))[0])


def test_a_step_unmasks_what_reached_the_threshold_and_at_least_one() -> None:
    assert [unmasked(0, 0.9, left) for left in (8, 6, 5, 4)] == [2, 1, 1, 4]
    assert [unmasked(0, threshold, 8) for threshold in (0.3, 0.4, 0.5)] == [4, 3, 2]
    assert [unmasked(1, 1.0, left) for left in (8, 4)] == [4, 4]


def test_masks_left_that_were_never_seen_go_as_those_of_their_block_that_come_nearest() -> None:
    assert unmasked(0, 0.5, 7) == 2  # of three masks as many as of two, of which half reached 0.5
    assert unmasked(0, 0.9, 3) == 3


def test_steps_left_are_those_that_the_request_takes() -> None:
    steps_left = RECORDED.steps_left(hundredths_of(np.array([0.3, 0.9])))
    assert steps_left(np.array([0, 0, 1]), np.array([8, 5, 8])).tolist() == [[2, 4], [2, 2], [2, 2]]
