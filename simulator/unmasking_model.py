"""How many tokens a denoising step unmasks: a statistical model of the language model.

Each masked token of the block exceeds the threshold with a probability that depends on the threshold and on the
request's difficulty; all that do are unmasked, at least one. The probabilities are such that the mean over requests of
the steps for a block of B tokens is exactly B / tokens_per_step at every threshold of the steps table.

There are NUM_LEVELS equally likely levels of difficulty, and thresholds are in hundredths, so all of this is tabulated.
"""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from shared.arrays import Float32, Float64, Int32, Int64
from simulator.steps_table import StepsTable

NUM_LEVELS = 64
NUM_THRESHOLDS = 101  # thresholds 0.00, 0.01, .. 1.00
# Standard deviation of the logit of steps per token between requests. Steps at 0.9 then differ by about 25 % (standard
# deviation), and the error of an estimate from the mean alone reaches the 75 % that the paper reports.
SPREAD = 0.4
_PROBABILITIES = 2000  # points between which the inverse of the steps is interpolated
_BISECTIONS = 60

IntArray = Int32 | Int64
TrueStepsLeft = Callable[[IntArray, IntArray], Float64]  # levels [n], masks of the whole output [n] -> [n, c]


class UnmaskingTables:
    """Tables by level, threshold in hundredths, and masks left in the block."""

    def __init__(self, steps: StepsTable, block_length: int = 32) -> None:
        self.block_length = block_length
        self.lowest = int(hundredths_of(steps.thresholds[:1])[0])  # threshold of the table, in hundredths
        probabilities = np.linspace(0.0, 1.0, _PROBABILITIES)
        table = steps_by_masks(probabilities, block_length)  # [points, block_length + 1]
        wanted = block_length * steps_per_token(steps)  # [LEVELS, GRID]
        wanted = np.clip(wanted, 1.0, float(block_length))
        self.probability: Float64 = np.interp(-wanted, -table[:, -1], probabilities)  # [LEVELS, GRID]
        self.block_steps: Float64 = np.stack(  # [LEVELS, GRID, masks]: expected steps to the end of the block
            [np.interp(self.probability, probabilities, table[:, masks]) for masks in range(block_length + 1)], axis=-1
        )

    def unmask(self, random: np.random.Generator, levels: IntArray, hundredths: IntArray, left: IntArray) -> Int64:
        """Tokens that one step unmasks, at least one each. Shapes: all [n] -> [n]; `left`: masks left of the output."""
        masks = masks_of_block(left, self.block_length)
        return np.maximum(random.binomial(masks, self.probability[levels, hundredths]), 1)

    def steps_left(self, hundredths: Int64) -> TrueStepsLeft:
        """The mean steps left if the threshold does not change, at each of c thresholds. Shapes: hundredths [c]."""
        by_masks = self.block_steps[:, hundredths].swapaxes(1, 2)  # [LEVELS, masks, c]
        steps, whole_block = np.ascontiguousarray(by_masks).reshape(-1, len(hundredths)), self.block_length

        def steps_left(levels: IntArray, left: IntArray) -> Float64:
            of_level = levels * (whole_block + 1)
            of_blocks: Float64 = steps.take(of_level + whole_block, axis=0)
            of_blocks *= ((left - 1) // whole_block)[:, None]
            of_blocks += steps.take(of_level + masks_of_block(left, whole_block), axis=0)
            return of_blocks

        return steps_left


def masks_of_block(left: IntArray, block_length: int) -> IntArray:
    """Masks of the current block, if `left` are those of the whole output. Shapes: any -> the same."""
    return (left - 1) % block_length + 1


def hundredths_of(thresholds: Float32 | Float64) -> Int64:
    """Thresholds as indices into the tables. Shapes: any -> the same."""
    return np.rint(np.asarray(thresholds, dtype=np.float64) * (NUM_THRESHOLDS - 1)).astype(np.int64)


def steps_by_masks(probabilities: Float64, block_length: int) -> Float64:
    """Expected steps until no mask is left, if each step unmasks max(1, Binomial(masks, p)).

    Shapes: [n] -> [n, block_length + 1], by masks left.
    """
    p = probabilities[:, None]
    expected = np.zeros((len(probabilities), block_length + 1))
    chances = np.ones((len(probabilities), 1))  # that k of m masks exceed the threshold, k = 0 .. m
    for masks in range(1, block_length + 1):
        padded = np.pad(chances, ((0, 0), (1, 1)))
        chances = padded[:, 1:] * (1 - p) + padded[:, :-1] * p
        moves = chances.copy()
        moves[:, 1] += moves[:, 0]  # at least one
        left = expected[:, masks - 1 :: -1]  # after 1 .. masks tokens
        expected[:, masks] = 1.0 + (moves[:, 1:] * left).sum(axis=1)
    return expected


def steps_per_token(steps: StepsTable) -> Float64:
    """By level and threshold, [LEVELS, GRID]; the mean over levels is 1 / tokens_per_step.

    Logistic-normal over requests, so that it stays in 0..1 and a hard request is hard at every threshold.
    """
    middles = [NormalDist().inv_cdf((level + 0.5) / NUM_LEVELS) for level in range(NUM_LEVELS)]
    offsets = SPREAD * np.array(middles)[:, None]
    mean = 1.0 / steps.tokens_at(np.linspace(0.0, 1.0, NUM_THRESHOLDS))
    low, high = np.full(NUM_THRESHOLDS, -20.0), np.full(NUM_THRESHOLDS, 40.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = _logistic(middle + offsets).mean(axis=0) < mean
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return _logistic(low + offsets)


def _logistic(x: Float64) -> Float64:
    return 1.0 / (1.0 + np.exp(-x))
