"""Trains the live step predictor on requests that an unmasking model runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.predictor.model import StepPredictor
from services.predictor.training import fit
from services.predictor.trajectories import Trajectory, examples
from shared.arrays import Float64, Int64
from simulator.confidences import Confidences
from simulator.unmasking_model import NUM_LEVELS, UnmaskingTables, hundredths_of

NUM_REQUESTS = 100  # "Step Prediction": the paper's training set
CHANGE_SHARE = 0.3  # share of the steps under changing thresholds that change the threshold


def train_predictor(
    tables: UnmaskingTables, output_tokens: Int64, thresholds: Float64, random: np.random.Generator
) -> StepPredictor:
    """Fit a predictor to NUM_REQUESTS requests. Shapes: output_tokens [any], drawn from; thresholds [c]."""
    fixed, changing = run_under_each(tables, output_tokens, thresholds, NUM_REQUESTS, random)
    return StepPredictor(fit(examples(fixed + changing)))


def run_under_each(
    tables: UnmaskingTables, output_tokens: Int64, thresholds: Float64, requests: int, random: np.random.Generator
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Run requests under each threshold throughout, and again under each from a state reached under changing ones.

    Shapes: output_tokens [any], drawn from; thresholds [c].
    """
    levels = np.tile(random.integers(NUM_LEVELS, size=requests), 2 * len(thresholds))
    outputs = np.tile(random.choice(output_tokens, size=requests), 2 * len(thresholds))
    final = np.tile(np.repeat(thresholds, requests), 2)  # [runs]
    half = len(final) // 2
    first = [_changing(thresholds, int(output), random) for output in outputs[:half]]
    trajectories = run(tables, levels, outputs, final, [*([np.empty(0)] * half), *first], random)
    return trajectories[:half], trajectories[half:]


def run(
    tables: UnmaskingTables,
    levels: Int64,
    outputs: Int64,
    thresholds: Float64,
    first: Sequence[Float64],
    random: np.random.Generator,
) -> list[Trajectory]:
    """Run each request alone, with the thresholds of `first`, then its one of `thresholds`. Shapes: all [n]."""
    confidences = Confidences(tables, len(levels))
    left = outputs.copy()
    steps: list[list[tuple[Any, ...]]] = [[] for _ in levels]  # threshold, unmasked tokens, statistics
    while len(active := np.flatnonzero(left)):
        number = len(steps[active[0]])  # equal for all active requests
        used = np.array([first[i][number] if number < len(first[i]) else thresholds[i] for i in active.tolist()])
        counts, statistics = confidences.unmask(random, active, levels[active], hundredths_of(used), left[active])
        left[active] -= counts
        for i, *step in zip(active.tolist(), used.tolist(), counts.tolist(), statistics, strict=True):
            steps[i].append(tuple(step))
    return [_trajectory(tables.block_length, one) for one in steps]


def _trajectory(block_length: int, steps: Sequence[tuple[Any, ...]]) -> Trajectory:
    used, unmasked, statistics = zip(*steps, strict=True)
    return Trajectory(block_length, np.array(used), np.array(unmasked, dtype=np.int32), np.array(statistics))


def _changing(thresholds: Float64, output: int, random: np.random.Generator) -> Float64:
    """Changing thresholds for a random number of a request's first steps."""
    picked = random.choice(thresholds, size=int(random.integers(1, max(2, output // 4))))
    changes = random.random(len(picked)) < CHANGE_SHARE
    changes[0] = True
    return np.asarray(picked[np.maximum.accumulate(np.where(changes, np.arange(len(picked)), 0))])
