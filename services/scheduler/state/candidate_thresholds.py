"""Which candidate threshold a threshold counts as."""

import numpy as np

from shared.arrays import Float64, Int64


def candidate_of(thresholds: Float64, candidates: Float64) -> Int64:
    """The index of the candidate that each threshold counts as: the next higher one, or the highest. Shapes: thresholds
    [n], candidates [c], ascending -> [n]."""
    found: Int64 = np.minimum(candidates.searchsorted(thresholds), len(candidates) - 1)
    return found
