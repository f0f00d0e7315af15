"""Fits the step predictor, evaluates it on held-out requests, and writes its directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
from msgspec.structs import replace

from services.predictor import evaluation
from services.predictor.model import FEATURES, StepPredictor, version_of
from services.predictor.trajectories import Examples, Trajectory, examples, tokens_per_step
from shared.predictor_card import MODEL_FILE, PredictorCard, write_predictor_card

NUM_TREES = 150
PARAMETERS: dict[str, Any] = {
    "objective": "gamma",  # predicts the mean; errors are relative
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 40,
    "feature_fraction": 0.8,
    "monotone_constraints": [1] + [0] * (len(FEATURES) - 1),  # a higher threshold never takes fewer steps
    "deterministic": True,
    "seed": 0,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """Mean relative errors on held-out trajectories."""

    examples: int  # in the training set
    fixed: dict[str, float]  # by kind of estimate, under one threshold
    changing: dict[str, float]  # by kind of estimate, under changing thresholds
    by_granularity: dict[int, float]  # by newly unmasked tokens between two predictions


@dataclass(frozen=True, slots=True)
class TrainedPredictor:
    booster: lightgbm.Booster
    card: PredictorCard
    report: TrainingReport


def fit(learned_from: Examples) -> lightgbm.Booster:
    """Fit steps per masked token. Source: "Step Prediction": a gradient boosting machine."""
    ratio = learned_from.steps_left / learned_from.masks_left
    data = lightgbm.Dataset(learned_from.rows, ratio, feature_name=list(FEATURES))
    return lightgbm.train(PARAMETERS, data, NUM_TREES)


def train(
    learned_from: Sequence[Trajectory],
    fixed: Sequence[Trajectory],
    changing: Sequence[Trajectory],
    thresholds: Sequence[float],
) -> TrainedPredictor:
    """Fit a predictor and evaluate it on trajectories of other requests, with fixed and with changing thresholds.

    Raises: ValueError if a threshold has no trajectory of its own.
    """
    training_set = examples(learned_from)
    booster = fit(training_set)
    card = PredictorCard(
        version=version_of(booster.model_to_string()),
        features=list(FEATURES),
        thresholds=list(thresholds),
        tokens_per_step=tokens_per_step(learned_from, thresholds),
    )
    predictor, progress = StepPredictor(booster), StepPredictor(fit(evaluation.without_confidences(training_set)))
    estimates: dict[str, evaluation.Estimate] = {
        "one-shot": partial(evaluation.one_shot, card),
        "masks left / mean tokens per step": partial(evaluation.historical_rate, card),
        "masks left / own tokens per step so far": partial(evaluation.own_rate, card),
        "progress features": partial(evaluation.predicted, progress, confidences=False),
        "all features": partial(evaluation.predicted, predictor),
    }
    tested = [*fixed, *changing]
    by_granularity = {
        tokens: evaluation.mean_relative_error(partial(evaluation.updated_every, tokens, predictor, card), tested)
        for tokens in evaluation.GRANULARITIES
    }
    report = TrainingReport(
        examples=len(training_set.rows),
        fixed={name: evaluation.mean_relative_error(estimate, fixed) for name, estimate in estimates.items()},
        changing={name: evaluation.mean_relative_error(estimate, changing) for name, estimate in estimates.items()},
        by_granularity=by_granularity,
    )
    granularity = evaluation.largest_granularity(by_granularity)
    return TrainedPredictor(booster, replace(card, update_granularity=granularity), report)


def save_predictor(directory: Path, trained: TrainedPredictor) -> None:
    """Write the model and its card; create the directory if needed."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MODEL_FILE).write_text(trained.booster.model_to_string(), encoding="utf-8")
    write_predictor_card(directory, trained.card)
