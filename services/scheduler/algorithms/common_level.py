"""One confidence threshold for all requests, the level: it falls as the booked share of the SLO window rises, which is
the sum of all requests' busy-seconds left, each over its SLO. A request that would miss its deadline at the level takes
a lower threshold, at which it fits.

Accuracy is concave in the steps, so equal work buys more accuracy at one common level than at a mix of extremes.
Arrays hold n requests and c candidate thresholds, ascending.
"""

import numpy as np

from shared.arrays import Float64

# The booked share of the SLO window at which the level leaves the highest candidate, passes the middle of the range,
# and reaches the lowest candidate.
BOOKED_KNOTS = (0.25, 0.45, 0.70)
STEP_FACTOR = 1.2  # reserve before a deadline: this many times the estimated steps left
STEP_MARGIN = 2.0  # and this number of steps more


def levels_at(booked: Float64, lowest: float, highest: float) -> Float64:
    """The common level at each booked share. Shapes: any -> the same."""
    return np.interp(booked, BOOKED_KNOTS, (highest, (lowest + highest) / 2, lowest))


def level_at(booked: float, lowest: float, highest: float) -> float:
    """The common level at one booked share."""
    return float(levels_at(np.array([booked]), lowest, highest)[0])


def steps_at(steps_left: Float64, candidates: Float64, thresholds: Float64 | float) -> Float64:
    """The steps left at each request's threshold, interpolated between the candidates, and constant beyond them.

    Shapes: steps_left [n, c], thresholds [n] or one for all -> [n].
    """
    last = len(candidates) - 1
    if not last:
        return steps_left[:, 0]
    above = np.minimum(np.maximum(candidates.searchsorted(thresholds), 1), last)
    low, high = candidates[above - 1], candidates[above]
    share = np.minimum(np.maximum((thresholds - low) / (high - low), 0.0), 1.0)
    each = np.arange(len(steps_left))
    lower = steps_left[each, above - 1]
    steps: Float64 = lower + share * (steps_left[each, above] - lower)
    return steps


def highest_within(steps_left: Float64, candidates: Float64, max_steps: Float64) -> Float64:
    """The highest threshold, interpolated between the candidates, at which the steps left are at most `max_steps`; the
    lowest candidate where none fits. Shapes: steps_left [n, c], max_steps [n] -> [n]."""
    if np.count_nonzero(steps_left > max_steps[:, None]) == 0:
        return np.full(len(steps_left), candidates[-1])
    steps = np.maximum.accumulate(steps_left, axis=1)  # an estimate may fall as the threshold rises
    fitting = (steps <= max_steps[:, None]).sum(axis=1)
    each, last = np.arange(len(steps)), len(candidates) - 1
    low, high = np.maximum(fitting - 1, 0), np.minimum(fitting, last)
    fewest = steps[each, low]
    rise = np.maximum(steps[each, high] - fewest, 1e-9)
    share = np.minimum(np.maximum((max_steps - fewest) / rise, 0.0), 1.0)
    chosen: Float64 = candidates[low] + share * (candidates[high] - candidates[low])
    return chosen
