"""Measures the cost of predictions relative to denoising steps."""

import statistics
import timeit
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dilaserve.prediction.collecting import RecordedRun
from services.predictor.evaluation import GRANULARITIES, updates
from services.predictor.model import StepPredictor
from services.predictor.queries import Query

CALLS = 50  # timed calls; the median counts


def cost_by_granularity(
    predictor: StepPredictor, recorded: RecordedRun, thresholds: Sequence[float]
) -> dict[int, float]:
    """Time for predictions / time for steps, by the number of unmasked tokens between two predictions of a request.

    The requests due after an iteration are predicted together, at all thresholds.
    Source: "Step Prediction", execution overhead.
    """
    states = recorded.trajectories[0].states()
    costs = {}
    for tokens in GRANULARITIES:
        predictions = sum(len(updates(trajectory, tokens)) for trajectory in recorded.trajectories)
        calls = min(predictions, recorded.iterations)
        query = _query(states, round(predictions / max(calls, 1)), thresholds)
        calls_s = timeit.repeat(partial(predictor.steps_left, [query]), number=1, repeat=CALLS)
        costs[tokens] = calls * statistics.median(calls_s) / recorded.seconds
    return costs


def _query(states: Query, requests: int, thresholds: Sequence[float]) -> Query:
    """A query of `requests` requests, each in one of the given states."""
    rows = np.arange(requests) % len(states.features)
    return replace(
        states,
        features=states.features[rows],
        thresholds=np.array(thresholds, dtype=np.float32),
        masks_left=states.masks_left[rows],
        blocks_left=states.blocks_left[rows],
    )
