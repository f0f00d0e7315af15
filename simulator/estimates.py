"""Answers in the step predictor's place: what is left on average given the request's true difficulty, or near it.

What even this does not know is chance: how the masks of the steps to come will turn out.
"""

import numpy as np

from services.scheduler.events import AskEstimates, EstimatesCame
from shared.arrays import Float64, Int64
from simulator.denoising import Denoising, hundredths_of


class Oracle:
    """Knows each request's difficulty; with noise it is wrong by a factor, drawn anew for each of its answers."""

    def __init__(self, denoising: Denoising, thresholds: Float64, noise: float, random: np.random.Generator) -> None:
        """`noise` is the standard deviation of the factor's logarithm; 0 is the oracle itself."""
        self._denoising = denoising
        self._hundredths = hundredths_of(thresholds)  # [c]
        self._noise = noise
        self._random = random

    def answer(self, question: AskEstimates, levels: Int64) -> EstimatesCame:
        """Shapes: levels [n], the true difficulty of the requests asked about."""
        masks = question.masks_left - self._denoising.block_length * (question.blocks_left - 1)
        steps_left = self._denoising.expected_steps(levels, self._hundredths, masks, question.blocks_left)
        if self._noise:
            steps_left *= np.exp(self._random.normal(0.0, self._noise, len(levels)))[:, None]
        return EstimatesCame(question.tickets, question.steps, steps_left)
