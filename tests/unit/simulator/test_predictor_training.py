"""Confidences that follow the unmasking model, and the live predictor trained on them."""

from functools import partial

import numpy as np
import pytest

from services.predictor.evaluation import mean_relative_error, one_shot, predicted
from services.predictor.model import FEATURES
from services.predictor.trajectories import tokens_per_step as mean_tokens
from shared.predictor_card import PredictorCard
from simulator.confidences import Confidences
from simulator.predictor_training import run, train_predictor
from simulator.steps_table import StepsTable
from simulator.unmasking_model import NUM_LEVELS, UnmaskingTables, hundredths_of

STEPS = StepsTable(np.array([0.5, 0.7, 0.9, 1.0]), np.array([7.01, 5.12, 3.25, 1.0]))
TABLES = UnmaskingTables(STEPS)
THRESHOLDS = np.array([0.5, 0.7, 0.9])


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 1.0])
def test_as_many_confidences_reach_a_threshold_as_the_model_unmasks(threshold: float) -> None:
    levels, masks = np.arange(64_000) % NUM_LEVELS, np.full(64_000, 32)
    at = np.full(64_000, hundredths_of(np.array(threshold)))
    counts, _ = Confidences(TABLES, 64_000).unmask(np.random.default_rng(0), np.arange(64_000), levels, at, masks)
    expected = TABLES.unmask(np.random.default_rng(1), levels, at, masks)
    assert counts.mean() == pytest.approx(expected.mean(), rel=0.01)
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
