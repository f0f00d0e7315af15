"""Training examples from recorded requests, errors computed by hand, and the order of the estimates' errors."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from services.predictor import evaluation as ev
from services.predictor.model import FEATURES, StepPredictor
from services.predictor.training import fit
from services.predictor.trajectories import Trajectory, examples, tokens_per_step
from shared.predictor_card import PredictorCard
from tests.support.trajectories import THRESHOLDS, fixed_trajectories, random_trajectory

CARD = PredictorCard(version="hand", features=list(FEATURES), thresholds=[0.9], tokens_per_step=[2.0])
STEPS = Trajectory(
    block_length=4,
    thresholds=np.full(4, 0.9),
    unmasked=np.array([1, 3, 3, 1], dtype=np.int32),
    confidence_stats=np.zeros((4, 5), dtype=np.float32),
)


def test_one_shot_estimates_count_down_and_historical_rates_follow_the_masks() -> None:
    np.testing.assert_allclose(ev.historical_rate(CARD, STEPS), [4, 3.5, 2, 1])
    np.testing.assert_allclose(ev.one_shot(CARD, STEPS), [4, 3, 2, 1])
    assert ev.mean_relative_error(partial(ev.one_shot, CARD), [STEPS]) == 0


def test_before_its_first_step_a_request_has_the_historical_rate() -> None:
    np.testing.assert_allclose(ev.own_rate(CARD, STEPS), [4, 7, 2, 1])
    assert ev.mean_relative_error(partial(ev.own_rate, CARD), [STEPS]) == pytest.approx((7 - 3) / 3 / 4)


def test_steps_that_write_nothing_leave_the_historical_rate() -> None:
    drawn = replace(STEPS, unmasked=np.array([0, 4, 0, 4], dtype=np.int32))
    np.testing.assert_allclose(ev.own_rate(CARD, drawn), [4, 4, 2, 3])


def test_a_prediction_is_due_after_a_number_of_newly_unmasked_tokens() -> None:
    assert ev.updates(STEPS, 1) == [1, 2, 3]
    assert ev.updates(STEPS, 2) == [2, 3]
    assert ev.updates(STEPS, 4) == [2]
    assert ev.updates(STEPS, 32) == []


def test_the_largest_granularity_within_the_tolerance_is_chosen() -> None:
    assert ev.largest_granularity({1: 0.20, 2: 0.19, 4: 0.21, 8: 0.2101}) == 4


def card_of(train: list[Trajectory]) -> PredictorCard:
    means = tokens_per_step(train, THRESHOLDS)
    return PredictorCard(version="x", features=list(FEATURES), thresholds=list(THRESHOLDS), tokens_per_step=means)


def test_each_kind_of_features_improves_the_estimate() -> None:
    train, held_out = fixed_trajectories(range(40)), fixed_trajectories(range(100, 120))
    card = card_of(train)
    full = StepPredictor(fit(examples(train)))
    progress = StepPredictor(fit(ev.without_confidences(examples(train))))
    errors = [
        ev.mean_relative_error(estimate, held_out)
        for estimate in (
            partial(ev.predicted, full),
            partial(ev.predicted, progress, confidences=False),
            partial(ev.one_shot, card),
        )
    ]
    assert errors == sorted(errors)
    assert errors[0] < 0.7 * errors[2]
    assert errors[0] < ev.mean_relative_error(partial(ev.own_rate, card), held_out)


def test_requests_with_changing_thresholds_are_predicted_as_well() -> None:
    prefixes = [tuple(np.random.default_rng(seed).choice(THRESHOLDS, size=4)) for seed in range(120)]
    mixed = [random_trajectory(seed, prefixes[seed], THRESHOLDS[seed % 3]) for seed in range(120)]
    train = fixed_trajectories(range(40)) + mixed[:80]
    card = card_of(train)
    predictor = StepPredictor(fit(examples(train)))
    held_out = mixed[80:]
    assert ev.mean_relative_error(partial(ev.predicted, predictor), held_out) < 0.7 * ev.mean_relative_error(
        partial(ev.one_shot, card), held_out
    )


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
