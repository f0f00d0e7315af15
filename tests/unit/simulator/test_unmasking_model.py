"""Tokens and confidences of simulated steps, and the live predictor trained on them."""

from functools import partial

import numpy as np
import pytest

from services.predictor.evaluation import mean_relative_error, one_shot, predicted
from services.predictor.model import FEATURES
from services.predictor.trajectories import tokens_per_step as mean_tokens
from services.scheduler.events import RequestEstimates
from shared.predictor_card import PredictorCard
from simulator.confidences import Confidences
from simulator.estimates import oracle_predictor
from simulator.predictor_training import run, train_predictor
from simulator.steps_table import StepsTable
from simulator.unmasking_model import NUM_LEVELS, UnmaskingTables, hundredths_of, steps_by_masks

STEPS = StepsTable(np.array([0.5, 0.7, 0.9, 1.0]), np.array([7.01, 5.12, 3.25, 1.0]))
TABLES = UnmaskingTables(STEPS)


def steps_for_blocks(threshold: float, blocks: int) -> float:
    """Mean steps of requests with `blocks` blocks, over all levels."""
    random = np.random.default_rng(0)
    levels = np.arange(blocks) % NUM_LEVELS
    masks = np.full(blocks, 32)
    steps = 0
    while len(masks):
        steps += len(masks)
        masks = masks - TABLES.unmask(random, levels, np.full(len(masks), hundredths_of(np.array(threshold))), masks)
        levels, masks = levels[masks > 0], masks[masks > 0]
    return steps / blocks


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 1.0])
def test_the_mean_steps_of_a_block_are_those_of_the_steps_table(threshold: float) -> None:
    expected = 32 / float(STEPS.tokens_at(np.array(threshold)))
    assert TABLES.block_steps[:, hundredths_of(np.array(threshold)), 32].mean() == pytest.approx(expected, rel=1e-4)
    assert steps_for_blocks(threshold, 64 * 500) == pytest.approx(expected, rel=0.01)


def test_a_step_unmasks_between_one_and_all_masked_tokens() -> None:
    masks = np.arange(1, 33).repeat(50)
    counts = TABLES.unmask(np.random.default_rng(1), np.full(len(masks), 3), np.full(len(masks), 90), masks)
    assert counts.min() == 1
    assert (counts <= masks).all()


def test_expected_steps_of_few_masks_by_hand() -> None:
    [expected] = steps_by_masks(np.array([0.5]), 2)
    # one mask: one step; two masks: both at once in one case of four, else one more step
    assert expected.tolist() == pytest.approx([0.0, 1.0, 1.75])


def question(masks_left: list[int], blocks_left: list[int]) -> RequestEstimates:
    n = len(masks_left)
    return RequestEstimates(
        np.arange(n),
        np.zeros(n, dtype=np.int32),
        np.zeros((n, 10), dtype=np.float32),
        np.array(masks_left, dtype=np.int32),
        np.array(blocks_left),
    )


def test_the_oracle_predicts_the_exact_number_of_steps() -> None:
    oracle = oracle_predictor(TABLES, np.array([0.9, 1.0]), 0.0, np.random.default_rng(0))
    answer = oracle(question([32 + 5, 64], [2, 2]), np.array([40, 40]))
    hard = TABLES.block_steps[40, 90]
    assert answer.steps_left[:, 0].tolist() == pytest.approx([hard[32] + hard[5], 2 * hard[32]])
    assert answer.steps_left[:, 1].tolist() == pytest.approx([37, 64])


def test_a_noisy_oracle_has_the_given_error() -> None:
    oracle = oracle_predictor(TABLES, np.array([1.0]), 0.2, np.random.default_rng(0))
    answer = oracle(question([64] * 2000, [2] * 2000), np.zeros(2000, dtype=np.int64))
    assert np.log(answer.steps_left / 64).std() == pytest.approx(0.2, rel=0.1)


THRESHOLDS = np.array([0.5, 0.7, 0.9])


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 1.0])
def test_as_many_confidences_reach_a_threshold_as_the_model_unmasks(threshold: float) -> None:
    levels, masks = np.arange(16_000) % NUM_LEVELS, np.full(16_000, 32)
    at = np.full(16_000, hundredths_of(np.array(threshold)))
    counts, _ = Confidences(TABLES, 16_000).unmask(np.random.default_rng(0), np.arange(16_000), levels, at, masks)
    expected = TABLES.unmask(np.random.default_rng(1), levels, at, masks)
    assert counts.mean() == pytest.approx(expected.mean(), rel=0.02)
    assert counts.min() >= 1


def test_the_statistics_are_those_of_all_known_confidences_in_order() -> None:
    confidences, random = Confidences(TABLES, 1), np.random.default_rng(0)
    request, level, at = np.array([0]), np.array([30]), np.array([90])
    first, _ = confidences.unmask(random, request, level, at, np.array([32]))
    _, [stats] = confidences.unmask(random, request, level, at, np.array([32 - first[0]]))
    low, quarter, median, mean, most = stats.tolist()
    assert 0 <= low <= quarter <= median <= most <= 1
    assert low < mean < 1


def test_a_predictor_trained_in_simulation_beats_the_one_shot_estimate() -> None:
    random = np.random.default_rng(0)
    outputs = np.array([64, 128, 256])
    predictor = train_predictor(TABLES, outputs, THRESHOLDS, random)
    levels, used = random.integers(NUM_LEVELS, size=90), np.repeat(THRESHOLDS, 30)
    held_out = run(TABLES, levels, np.tile(outputs, 30), used, [np.empty(0)] * 90, random)
    card = PredictorCard(
        version="",
        features=list(FEATURES),
        thresholds=list(THRESHOLDS),
        tokens_per_step=mean_tokens(held_out, THRESHOLDS.tolist()),
    )
    error = mean_relative_error(partial(predicted, predictor), held_out)
    assert error < 0.7 * mean_relative_error(partial(one_shot, card), held_out)
