"""Replays the confidences of recorded requests, in place of the statistical unmasking model.

That model unmasks at one rate throughout a request. In real requests the masks left after the first steps of a block
are the harder ones, and a block of padding takes one step. Lowering the threshold late then gains less.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.worker.engine.confidence_stats import summarize
from shared.arrays import Float32, Float64, Int64
from simulator.unmasking_model import NUM_THRESHOLDS, IntArray, TrueStepsLeft, masks_of_block


@dataclass(frozen=True, slots=True)
class Canvas:
    """A recorded request before one of its steps."""

    left: int  # masks of the whole output
    confidences: Float64  # [m], of the masks of the current block


class ReplayModel:
    """Each level is one recorded request: the confidences of its step, by the masks left before it."""

    def __init__(self, requests: Sequence[Sequence[Canvas]], output_length: int, block_length: int = 32) -> None:
        """Every request was recorded, under any thresholds, until none of `output_length` masks was left."""
        self.block_length = block_length
        self.output_length = output_length
        self.levels = len(requests)
        self._confidences = np.stack([_tabulated(canvases, output_length, block_length) for canvases in requests])

    def confidences(self, levels: IntArray, left: IntArray) -> Float64:
        """Confidences of the current block's masks, descending, then -1. Shapes: [n], [n] -> [n, block_length]."""
        confidences: Float64 = self._confidences[levels, left]
        return confidences

    def unmask(self, random: np.random.Generator, levels: IntArray, hundredths: IntArray, left: IntArray) -> Int64:  # noqa: ARG002
        """Tokens that the recorded requests unmask. Shapes: all [n] -> [n]."""
        return _reached(self.confidences(levels, left), hundredths)

    def steps_left(self, hundredths: Int64) -> TrueStepsLeft:
        """The steps that the request takes. Shapes: hundredths [c]."""
        counts = np.stack([_reached(self._confidences, np.array(at)) for at in hundredths], axis=-1)
        steps = np.zeros(counts.shape)  # [levels, output_length + 1, c]
        each, at = np.arange(self.levels)[:, None], np.arange(len(hundredths))
        for left in range(1, counts.shape[1]):
            steps[:, left] = 1 + steps[each, left - counts[:, left], at]
        return lambda levels, left: steps[levels, left]


class ReplayedConfidences:
    """The known confidences of n requests."""

    def __init__(self, recorded: ReplayModel, requests: int) -> None:
        self._recorded = recorded
        self._unmasked = np.full((requests, recorded.output_length), np.nan, dtype=np.float32)

    def unmask(
        self,
        random: np.random.Generator,  # noqa: ARG002
        requests: Int64,
        levels: IntArray,
        hundredths: IntArray,
        left: IntArray,
    ) -> tuple[Int64, Float32]:
        """As `Confidences.unmask`."""
        confidences = self._recorded.confidences(levels, left)
        counts = _reached(confidences, hundredths)
        number = np.arange(confidences.shape[1])
        row, column = (number < counts[:, None]).nonzero()
        done = self._recorded.output_length - left
        self._unmasked[requests[row], done[row] + column] = confidences[row, column]
        masked = np.where((number >= counts[:, None]) & (confidences >= 0), confidences, np.nan)
        return counts, summarize(np.hstack([self._unmasked[requests], masked.astype(np.float32)]))


def _reached(confidences: Float64, hundredths: IntArray) -> Int64:
    """How many confidences reach each threshold, at least one. Shapes: [..., m], [...] -> [...]."""
    counts: Int64 = np.maximum((confidences >= hundredths[..., None] / (NUM_THRESHOLDS - 1)).sum(axis=-1), 1)
    return counts


def _tabulated(canvases: Sequence[Canvas], output_length: int, block_length: int) -> Float64:
    """The confidences by masks left, descending, -1 beyond the block's masks: [output_length + 1, block_length].

    Canvases with equally many masks left are averaged in their order. If there is none, the nearest canvas of the block
    is interpolated.
    """
    recorded: dict[int, list[Float64]] = {}
    for canvas in canvases:
        recorded.setdefault(canvas.left, []).append(np.sort(canvas.confidences)[::-1])
    known = np.array(sorted(recorded))
    masks = masks_of_block(np.arange(output_length + 1), block_length)
    table = np.full((output_length + 1, block_length), -1.0)
    for left in range(1, output_length + 1):
        same_block = known[(known - 1) // block_length == (left - 1) // block_length]
        mean = np.mean(recorded[int(same_block[np.abs(same_block - left).argmin()])], axis=0)
        at = (np.arange(masks[left]) + 0.5) / masks[left] * len(mean) - 0.5
        table[left, : masks[left]] = np.interp(at, np.arange(len(mean)), mean)
    return table
