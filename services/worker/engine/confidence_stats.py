"""Summarizes the known confidences of requests. Pure NumPy; shape letters: N requests, O output tokens."""

import numpy as np

from shared.arrays import Float32

SHARES = np.array([0.25, 0.5, 0.75])  # of the quartiles and the median


def summarize(known: Float32) -> Float32:
    """Min, lower quartile, median, mean and upper quartile of each request's known confidences.

    Shapes: known [N, O], NaN where unknown -> [N, 5]; not finite in a row without a known one, of a device that fails.
    """
    is_known = ~np.isnan(known)
    count = np.maximum(is_known.sum(axis=1), 1)[:, None]  # [N, 1]
    width = 1 + np.flatnonzero(is_known.any(axis=0)).max(initial=0)  # one long output makes the array wide
    ordered = np.sort(known[:, :width], axis=1)  # NaN sorts last
    place = (count - 1) * SHARES  # [N, 3]
    below = place.astype(np.int64)
    rows = np.arange(len(known))[:, None]
    low, high = ordered[rows, below], ordered[rows, np.minimum(below + 1, count - 1)]
    stats = np.empty((len(known), 5), dtype=np.float32)
    stats[:, 0] = ordered[:, 0]
    stats[:, [1, 2, 4]] = low + (high - low) * (place - below).astype(np.float32)
    # From the lowest on: the sum depends neither on the lengths of other outputs nor on the order of the steps.
    totals = np.cumsum(ordered, axis=1, dtype=np.float64)
    stats[:, 3] = totals[rows, count - 1][:, 0] / count[:, 0]
    return stats
