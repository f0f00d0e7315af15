"""The step predictor: a gradient boosting machine that maps a request's state and a threshold to its steps left.

The model predicts steps per masked token, so that one model serves every output length.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import lightgbm
import numpy as np

from services.predictor.queries import Query
from shared.arrays import Float32, Float64
from shared.errors import BadInput
from shared.predictor_card import MODEL_FILE, PredictorCard, read_predictor_card
from shared.predictor_features import STATE_FEATURES, THRESHOLD_FEATURE

FEATURES = (THRESHOLD_FEATURE, *STATE_FEATURES)  # the model's columns


class StepPredictor:
    """A trained model. Single-threaded, because queries are small."""

    def __init__(self, booster: lightgbm.Booster) -> None:
        self._booster = booster

    def steps_left(self, queries: Sequence[Query]) -> list[Float32]:
        """Answer all queries in one pass through the model.

        Source: "Step Prediction". Returns: steps for each query, [n, c], see `possible_steps`.
        """
        ratios = self._predict(np.concatenate([model_rows(query.features, query.thresholds) for query in queries]))
        ends = np.cumsum([len(query.features) * len(query.thresholds) for query in queries])
        return [
            possible_steps(part.reshape(len(query.features), len(query.thresholds)), query)
            for part, query in zip(np.split(ratios, ends[:-1]), queries, strict=True)
        ]

    def _predict(self, rows: Float32) -> Float64:
        """Steps per masked token. Shapes: [m, 11] -> [m]."""
        if not len(rows):
            return np.empty(0)
        return np.asarray(self._booster.predict(rows, num_threads=1), dtype=np.float64)


def possible_steps(ratios: Float64, query: Query) -> Float32:
    """Convert steps per masked token to steps: at least one per block left, at most one per mask.

    Shapes: [n, c] -> [n, c].
    """
    masks_left, blocks_left = query.masks_left[:, None], query.blocks_left[:, None]
    at_least = np.maximum(blocks_left, np.minimum(masks_left, 1))
    return np.clip(ratios * masks_left, at_least, masks_left).astype(np.float32)


def model_rows(features: Float32, thresholds: Float32) -> Float32:
    """The model's rows: every state under every threshold, grouped by state.

    Shapes: features [n, 10], thresholds [c] -> [n * c, 11], columns FEATURES.
    """
    n, c = len(features), len(thresholds)
    rows = np.empty((n, c, len(FEATURES)), dtype=np.float32)
    rows[:, :, 0] = thresholds
    rows[:, :, 1:] = features[:, None, :]
    return rows.reshape(n * c, len(FEATURES))


def load_predictor(directory: Path) -> tuple[StepPredictor, PredictorCard]:
    """Raises: BadInput if the directory holds no predictor, or one with other features."""
    card = read_predictor_card(directory)
    if tuple(card.features) != FEATURES:
        raise BadInput(f"the predictor in {directory} has the features {card.features}, not {list(FEATURES)}")
    try:
        text = (directory / MODEL_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"no predictor in {directory}: {MODEL_FILE}: {error}", "predictor") from None
    if version_of(text) != card.version:
        raise BadInput(f"{directory / MODEL_FILE} is not the model that its card describes", "predictor")
    return StepPredictor(lightgbm.Booster(model_str=text)), card


def version_of(model_text: str) -> str:
    """A predictor's version: the beginning of its model file's SHA-256."""
    return hashlib.sha256(model_text.encode()).hexdigest()[:12]
