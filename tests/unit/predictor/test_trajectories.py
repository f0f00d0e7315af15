"""Training examples from recorded requests."""

import numpy as np
import pytest

from services.predictor.trajectories import Trajectory, examples, tokens_per_step
from tests.support.trajectories import random_trajectory


def trajectory(thresholds: list[float], unmasked: list[int]) -> Trajectory:
    stats = np.arange(1, 5 * len(unmasked) + 1, dtype=np.float32).reshape(-1, 5)
    return Trajectory(4, np.array(thresholds), np.array(unmasked, dtype=np.int32), stats)


def test_the_states_of_a_request_are_those_before_each_step() -> None:
    states = trajectory([0.9] * 4, [1, 3, 3, 1]).states()
    expected: list[list[float]] = [
        # output, steps done, unmasked, block, unmasked in it, confidences of the last step
        [8, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [8, 1 / 8, 1 / 8, 0, 1 / 4, 1, 2, 3, 4, 5],
        [8, 2 / 8, 4 / 8, 1 / 2, 0, 6, 7, 8, 9, 10],
        [8, 3 / 8, 7 / 8, 1 / 2, 3 / 4, 11, 12, 13, 14, 15],
    ]
    np.testing.assert_allclose(states.features, expected)
    assert states.masks_left.tolist() == [8, 7, 4, 1]
    assert states.blocks_left.tolist() == [2, 2, 1, 1]


def test_the_first_block_of_a_block_causal_model_may_begin_in_the_prompt() -> None:
    stats = np.ones((3, 5), dtype=np.float32)
    steps = Trajectory(4, np.full(3, 0.9), np.array([1, 2, 4], dtype=np.int32), stats, block_offset=1)
    states = steps.states()
    assert states.blocks_left.tolist() == [2, 2, 1]
    in_block = states.features[:, 4]  # the share of the block that is unmasked
    assert in_block.tolist() == [1 / 4, 2 / 4, 0]


def test_every_state_under_a_fixed_threshold_is_an_example() -> None:
    learned = examples([trajectory([0.9] * 4, [1, 3, 3, 1])])
    assert learned.steps_left.tolist() == [4, 3, 2, 1]
    assert learned.masks_left.tolist() == [8, 7, 4, 1]
    np.testing.assert_allclose(learned.rows[:, 0], 0.9)


def test_only_states_after_the_last_threshold_change_are_examples() -> None:
    changing = trajectory([0.5, 0.9, 0.7, 0.7], [1, 3, 3, 1])
    learned = examples([changing])
    assert learned.steps_left.tolist() == [2, 1]
    np.testing.assert_allclose(learned.rows[:, 0], 0.7)
    np.testing.assert_allclose(learned.rows[0, 1:], changing.states().features[2])


def test_one_prefix_under_every_threshold_is_one_state_with_all_steps_left() -> None:
    runs = [random_trajectory(7, (0.9, 0.5, 0.9), threshold) for threshold in (0.6, 0.7, 0.8)]
    firsts = [examples([run]) for run in runs]
    for first in firsts[1:]:
        np.testing.assert_array_equal(first.rows[0, 1:], firsts[0].rows[0, 1:])
    assert [int(first.steps_left[0]) for first in firsts] == [run.num_steps - 3 for run in runs]


def test_one_shot_means_use_only_requests_with_a_constant_threshold() -> None:
    runs = [trajectory([0.9] * 4, [1, 3, 3, 1]), trajectory([0.9] * 2, [4, 4]), trajectory([0.5, 0.9], [4, 4])]
    assert tokens_per_step(runs, [0.9]) == [16 / 6]
    with pytest.raises(ValueError, match=r"0\.5"):
        tokens_per_step(runs, [0.5])
