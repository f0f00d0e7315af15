"""Trains the live step predictor for a model of denoising, from requests that are run in it."""

from collections.abc import Sequence

import numpy as np

from services.predictor.model import StepPredictor
from services.predictor.training import fit
from services.predictor.trajectories import Trajectory, examples
from shared.arrays import Float64, Int64
from simulator.confidences import Confidences
from simulator.unmasking_model import NUM_LEVELS, UnmaskingTables, hundredths_of

REQUESTS = 100  # "Step Prediction": the paper's training set
CHANGE_SHARE = 0.3  # of the steps of a changing threshold that change it


def train_predictor(
    denoising: UnmaskingTables, output_tokens: Int64, thresholds: Float64, random: np.random.Generator
) -> StepPredictor:
    """A predictor fitted to REQUESTS requests of these output lengths, see `run_under_each`.

    Shapes: output_tokens [any], drawn from; thresholds [c].
    """
    fixed, changing = run_under_each(denoising, output_tokens, thresholds, REQUESTS, random)
    return StepPredictor(fit(examples(fixed + changing)))


def run_under_each(
    denoising: UnmaskingTables, output_tokens: Int64, thresholds: Float64, requests: int, random: np.random.Generator
) -> tuple[list[Trajectory], list[Trajectory]]:
    """So many requests, each under every threshold throughout, and again from a state that it reached under changing
    ones. Shapes: output_tokens [any], drawn from; thresholds [c]."""
    levels = np.tile(random.integers(NUM_LEVELS, size=requests), 2 * len(thresholds))
    outputs = np.tile(random.choice(output_tokens, size=requests), 2 * len(thresholds))
    planned = np.tile(np.repeat(thresholds, requests), 2)  # [runs]
    half = len(planned) // 2
    first = [_changing(thresholds, int(output), random) for output in outputs[:half]]
    trajectories = run(denoising, levels, outputs, planned, [*([np.empty(0)] * half), *first], random)
    return trajectories[:half], trajectories[half:]


def run(
    denoising: UnmaskingTables,
    levels: Int64,
    outputs: Int64,
    thresholds: Float64,
    first: Sequence[Float64],
    random: np.random.Generator,
) -> list[Trajectory]:
    """Each request alone to its end: its steps use the thresholds of `first`, then its own of `thresholds`.

    Shapes: all [n].
    """
    confidences = Confidences(denoising, len(levels))
    left, steps = outputs.copy(), [_Steps() for _ in levels]
    while len(active := np.flatnonzero(left)):
        number = len(steps[active[0]].unmasked)  # the same for all that are still active
        used = np.array([first[i][number] if number < len(first[i]) else thresholds[i] for i in active.tolist()])
        counts, statistics = confidences.unmask(random, active, levels[active], hundredths_of(used), left[active])
        left[active] -= counts
        for i, *step in zip(active.tolist(), used.tolist(), counts.tolist(), statistics, strict=True):
            steps[i].add(*step)
    return [one.trajectory(denoising.block_length) for one in steps]


class _Steps:
    def __init__(self) -> None:
        self.thresholds: list[float] = []
        self.unmasked: list[int] = []
        self.statistics: list[np.ndarray] = []

    def add(self, threshold: float, unmasked: int, statistics: np.ndarray) -> None:
        self.thresholds.append(threshold)
        self.unmasked.append(unmasked)
        self.statistics.append(statistics)

    def trajectory(self, block_length: int) -> Trajectory:
        unmasked = np.array(self.unmasked, dtype=np.int32)
        return Trajectory(block_length, np.array(self.thresholds), unmasked, np.array(self.statistics))


def _changing(thresholds: Float64, output: int, random: np.random.Generator) -> Float64:
    """Thresholds that change on the way, for some of a request's first steps."""
    picked = random.choice(thresholds, size=int(random.integers(1, max(2, output // 4))))
    changes = random.random(len(picked)) < CHANGE_SHARE
    changes[0] = True
    return np.asarray(picked[np.maximum.accumulate(np.where(changes, np.arange(len(picked)), 0))])
