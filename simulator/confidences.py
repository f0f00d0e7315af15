"""Confidences that follow the unmasking model, for a trained predictor.

A masked token's confidence is drawn again at every step so that it reaches each threshold with the probability of
`UnmaskingTables`; a step's unmasked tokens follow from the confidences. They are in hundredths, and a request's known
confidences are counts, so that the quartiles of all requests are computed at once.
"""

import numpy as np

from shared.arrays import Float32, Int64
from simulator.unmasking_model import NUM_LEVELS, NUM_THRESHOLDS, IntArray, UnmaskingTables, masks_of_block

_DRAWS = 1 << 16  # values of a draw
QUARTILES = np.array([0.25, 0.5, 0.75])
VALUES = np.linspace(0.0, 1.0, NUM_THRESHOLDS)


class Confidences:
    """The known confidences of n requests."""

    def __init__(self, tables: UnmaskingTables, requests: int) -> None:
        self._unmasked = np.zeros((requests, NUM_THRESHOLDS), dtype=np.int16)  # tokens by confidence when unmasked
        self._of_draw = _by_draw(tables)
        self._block_length = tables.block_length

    def unmask(
        self, random: np.random.Generator, requests: Int64, levels: IntArray, hundredths: IntArray, left: IntArray
    ) -> tuple[Int64, Float32]:
        """Tokens that one step unmasks, at least one each, and the statistics that a worker reports after it.

        Shapes: requests, levels, hundredths (of the threshold), masks left of the output [n] -> [n] and [n, 5]: min,
        lower quartile, median, mean, upper quartile of the known confidences.
        """
        masks = masks_of_block(left, self._block_length)
        n, most = len(requests), int(masks.max())
        drawn = self._of_draw[levels[:, None], random.integers(_DRAWS, size=(n, most))].astype(np.int64)
        drawn[np.arange(most) >= masks[:, None]] = -1
        chosen = drawn >= hundredths[:, None]
        counts = chosen.sum(axis=1)
        none = (counts == 0).nonzero()[0]
        chosen[none, drawn[none].argmax(axis=1)] = True
        counts[none] = 1
        cells = drawn + NUM_THRESHOLDS * np.arange(n)[:, None]
        masked = ~chosen & (drawn >= 0)
        self._unmasked[requests] += _count(cells[chosen], n)
        return counts, _statistics(self._unmasked[requests] + _count(cells[masked], n))


def _by_draw(tables: UnmaskingTables) -> np.ndarray:
    """The confidence, in hundredths, of a uniform draw: the highest threshold that it reaches, [LEVELS, _DRAWS].

    Draws that reach no threshold of the steps table spread evenly below the lowest.
    """
    draws = (np.arange(_DRAWS) + 0.5) / _DRAWS
    table = np.empty((NUM_LEVELS, _DRAWS), dtype=np.uint8)
    lowest = tables.lowest
    for level, probability in enumerate(tables.probability):
        falling = np.minimum.accumulate(probability[lowest:])
        reached = np.searchsorted(-falling, -draws, side="right") - 1 + lowest
        below = lowest * (1.0 - draws) / max(1.0 - falling[0], 1.0 / _DRAWS)
        table[level] = np.where(draws <= falling[0], reached, np.clip(below, 0, lowest - 1))
    return table


def _count(cells: Int64, n: int) -> np.ndarray:
    return np.bincount(cells, minlength=n * NUM_THRESHOLDS).reshape(n, NUM_THRESHOLDS).astype(np.int16)


def _statistics(known: np.ndarray) -> Float32:
    """Shapes: counts by hundredth [n, GRID], at least one each -> [n, 5]."""
    upto = known.cumsum(axis=1, dtype=np.int64)
    total = upto[:, -1:]
    places = np.concatenate([np.zeros_like(total), np.rint((total - 1) * QUARTILES).astype(np.int64)], axis=1)
    at = VALUES[(upto[:, :, None] <= places[:, None, :]).sum(axis=1)]  # [n, 4]
    mean = (known @ VALUES)[:, None] / total
    return np.hstack([at[:, :3], mean, at[:, 3:]]).astype(np.float32)
