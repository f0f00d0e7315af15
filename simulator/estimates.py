"""Simulated step predictors: one that knows each request's true difficulty, and the trained one.

Even the oracle does not know chance: how many masks each later step will unmask.
"""

from collections.abc import Callable

import numpy as np

from services.predictor.model import StepPredictor
from services.predictor.queries import Query
from services.scheduler.events import EstimatesReceived, RequestEstimates
from shared.arrays import Float64, Int64
from simulator.unmasking_model import UnmaskingTables, hundredths_of

Predictor = Callable[[RequestEstimates, Int64], EstimatesReceived]  # the question and the difficulty levels [n]


def oracle_predictor(
    model: UnmaskingTables, thresholds: Float64, noise: float, random: np.random.Generator
) -> Predictor:
    """Answers with the expected steps, times a random factor per request and answer whose logarithm has the standard
    deviation `noise`."""
    true_steps_left = model.steps_left(hundredths_of(thresholds))

    def answer(question: RequestEstimates, levels: Int64) -> EstimatesReceived:
        steps_left = true_steps_left(levels, question.masks_left)
        if noise:
            steps_left *= np.exp(random.normal(0.0, noise, len(levels)))[:, None]
        return EstimatesReceived(question.tickets, question.steps, steps_left)

    return answer


def trained_predictor(predictor: StepPredictor, thresholds: Float64) -> Predictor:
    """Answers with the live step predictor; questions must hold confidence statistics."""
    candidates = thresholds.astype(np.float32)  # [c]

    def answer(question: RequestEstimates, levels: Int64) -> EstimatesReceived:  # noqa: ARG001
        query = Query(question.features, candidates, question.masks_left, question.blocks_left)
        [steps_left] = predictor.steps_left([query])
        return EstimatesReceived(question.tickets, question.steps, steps_left.astype(np.float64))

    return answer
