"""Summarizes the known confidences of requests. Pure NumPy; shape letters: N requests, O output tokens."""

import numpy as np

from shared.arrays import Float32


def summarize(known: Float32) -> Float32:
    """Min, lower quartile, median, mean and upper quartile of each request's known confidences.

    Shapes: known [N, O], NaN where unknown, at least one known per row -> [N, 5].
    """
    count = np.count_nonzero(~np.isnan(known), axis=1)  # [N]
    ordered = np.sort(known, axis=1)  # NaN sorts last
    rows = np.arange(len(known))

    def quantile(share: float) -> Float32:
        place = (count - 1) * share
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, count - 1)
        low, high = ordered[rows, below], ordered[rows, above]
        value: Float32 = low + (high - low) * (place - below).astype(np.float32)
        return value

    mean = np.nansum(known, axis=1) / count
    columns = [ordered[:, 0], quantile(0.25), quantile(0.5), mean, quantile(0.75)]
    return np.stack(columns, axis=1).astype(np.float32)
