"""Errors of estimates of the steps left, over whole trajectories.

Estimates of a trajectory have shape [S], one before each step, for the threshold that it ends with.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from services.predictor.model import StepPredictor
from services.predictor.trajectories import Examples, Trajectory
from shared.arrays import Float32, Float64
from shared.predictor_card import PredictorCard
from shared.predictor_features import STATE_FEATURES

Estimate = Callable[[Trajectory], Float64]

GRANULARITIES = (1, 2, 4, 8, 16, 32)  # newly unmasked tokens between two predictions
TOLERANCE = 0.05  # relative to the error with a prediction after every token
FIRST_CONFIDENCE = STATE_FEATURES.index("output_min_confidence")


def one_shot(card: PredictorCard, trajectory: Trajectory) -> Float64:
    """The estimate at arrival, from the output length and the historical mean, minus the steps since."""
    steps = trajectory.output_length / card.mean_tokens_per_step(trajectory.thresholds[-1:])
    return possible(steps - np.arange(trajectory.num_steps), trajectory)


def historical_rate(card: PredictorCard, trajectory: Trajectory) -> Float64:
    """Masks left divided by the historical mean of tokens per step."""
    return possible(trajectory.masks_left() / card.mean_tokens_per_step(trajectory.thresholds[-1:]), trajectory)


def own_rate(card: PredictorCard, trajectory: Trajectory) -> Float64:
    """Masks left divided by the request's own mean of tokens per step, before its first token by the historical one."""
    masks_left = trajectory.masks_left()
    written, steps = trajectory.output_length - masks_left, np.maximum(np.arange(trajectory.num_steps), 1)
    rates = np.where(written > 0, written / steps, card.mean_tokens_per_step(trajectory.thresholds[-1:]))
    return possible(masks_left / rates, trajectory)


def predicted(predictor: StepPredictor, trajectory: Trajectory, *, confidences: bool = True) -> Float64:
    """A prediction before every step; without `confidences` for a model fitted to examples `without_confidences`."""
    states = trajectory.states()
    if not confidences:
        states = replace(states, features=_hidden(states.features, FIRST_CONFIDENCE))
    return predictor.steps_left([states])[0][:, 0].astype(np.float64)


def updated_every(tokens: int, predictor: StepPredictor, card: PredictorCard, trajectory: Trajectory) -> Float64:
    """The scheduler's estimate: first the one-shot estimate, then a prediction each time `tokens` more tokens are
    unmasked; each minus the steps since."""
    steps_left, fresh = one_shot(card, trajectory), predicted(predictor, trajectory)
    for state in updates(trajectory, tokens):
        steps_left[state:] = fresh[state] - np.arange(trajectory.num_steps - state)
    return possible(steps_left, trajectory)


def updates(trajectory: Trajectory, tokens: int) -> list[int]:
    """The states at which a prediction is due: `tokens` unmasked since the last one."""
    due: list[int] = []
    last_masks = trajectory.output_length
    for state, masks_left in enumerate(trajectory.masks_left().tolist()):
        if last_masks - masks_left >= tokens:
            due.append(state)
            last_masks = masks_left
    return due


def mean_relative_error(estimate: Estimate, trajectories: Sequence[Trajectory]) -> float:
    """The mean of |estimated - left| / left over the states after the last change of the threshold."""
    errors = []
    for trajectory in trajectories:
        left = np.arange(trajectory.num_steps, 0, -1)
        errors.append((np.abs(estimate(trajectory) - left) / left)[trajectory.settled_at :])
    return float(np.concatenate(errors).mean())


def largest_granularity(errors: dict[int, float]) -> int:
    """The largest granularity whose error is within TOLERANCE of that of 1. Source: "Step Prediction"."""
    return max(tokens for tokens, error in errors.items() if error <= (1 + TOLERANCE) * errors[1])


def without_confidences(learned_from: Examples) -> Examples:
    """The same examples without confidence features."""
    return Examples(_hidden(learned_from.rows, 1 + FIRST_CONFIDENCE), learned_from.masks_left, learned_from.steps_left)


def possible(steps: Float64, trajectory: Trajectory) -> Float64:
    """Limit to at least one step per block and at most one per mask."""
    states = trajectory.states()
    return np.clip(steps, states.blocks_left, states.masks_left)


def _hidden(columns: Float32, first: int) -> Float32:
    kept = columns.copy()
    kept[:, first:] = 0
    return kept
