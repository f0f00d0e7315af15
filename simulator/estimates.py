"""Answers in the step predictor's place: from the request's true difficulty, or from a real predictor.

What even the oracle does not know is chance: how the masks of the steps to come will turn out.
"""

from typing import Protocol

import numpy as np

from services.predictor.model import StepPredictor
from services.predictor.queries import Query
from services.scheduler.events import EstimatesReceived, RequestEstimates
from shared.arrays import Float64, Int64
from simulator.unmasking_model import UnmaskingModel, hundredths_of


class EstimateSource(Protocol):
    """Whatever answers the scheduler's questions."""

    def answer(self, question: RequestEstimates, levels: Int64) -> EstimatesReceived:
        """Shapes: levels [n], the true difficulty of the requests asked about."""
        ...


class OracleEstimates:
    """Knows each request's difficulty; with noise it is wrong by a factor, drawn anew for each of its answers."""

    def __init__(self, pace: UnmaskingModel, thresholds: Float64, noise: float, random: np.random.Generator) -> None:
        """`noise` is the standard deviation of the factor's logarithm; 0 is the oracle itself."""
        self._steps_left = pace.steps_left(hundredths_of(thresholds))
        self._noise = noise
        self._random = random

    def answer(self, question: RequestEstimates, levels: Int64) -> EstimatesReceived:
        steps_left = self._steps_left(levels, question.masks_left)
        if self._noise:
            steps_left *= np.exp(self._random.normal(0.0, self._noise, len(levels)))[:, None]
        return EstimatesReceived(question.tickets, question.steps, steps_left)


class TrainedEstimates:
    """The live step predictor, asked what the live one is asked: questions must tell of confidences."""

    def __init__(self, predictor: StepPredictor, thresholds: Float64) -> None:
        self._predictor = predictor
        self._thresholds = thresholds.astype(np.float32)  # [c]

    def answer(self, question: RequestEstimates, levels: Int64) -> EstimatesReceived:  # noqa: ARG002
        query = Query(question.features, self._thresholds, question.masks_left, question.blocks_left)
        [steps_left] = self._predictor.steps_left([query])
        return EstimatesReceived(question.tickets, question.steps, steps_left.astype(np.float64))
