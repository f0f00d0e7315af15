"""One confidence threshold for all requests, the level: it falls as the booked work fills the SLO window. A request
that would miss its deadline at the level takes a lower threshold, at which it fits.

Accuracy is concave in the steps, so equal work buys more accuracy at one common level than at a mix of extremes.
Arrays hold n requests, k instances and c candidate thresholds, ascending.
"""

import numpy as np

from shared.arrays import Float64

# The booked share of the SLO window at which the level leaves the highest candidate, passes the middle of the range,
# and reaches the lowest candidate.
BOOKED_KNOTS = (0.25, 0.45, 0.70)
STEP_FACTOR = 1.2  # reserve of a rescue: this many times the estimated steps left
STEP_MARGIN = 4.0  # and this many steps more


def booked_share(instance_shares: Float64) -> float:
    """The share of the SLO window that the cluster's work takes, if instances share it by their speeds.

    Shapes: instance_shares [k], the share if one instance alone did all work. Returns: infinity without instances.
    """
    speed = float((1.0 / instance_shares).sum()) if len(instance_shares) else 0.0
    return 1.0 / speed if speed > 0 else np.inf


def level_at(booked: float, lowest: float, highest: float) -> float:
    """The common level at this booked share."""
    return float(np.interp(booked, BOOKED_KNOTS, (highest, (lowest + highest) / 2, lowest)))


def steps_at(steps_left: Float64, candidates: Float64, thresholds: Float64) -> Float64:
    """The steps left at each request's threshold, interpolated between the candidates, and constant beyond them.

    Shapes: steps_left [n, c], thresholds [n] -> [n].
    """
    last = len(candidates) - 1
    above = np.clip(candidates.searchsorted(thresholds), min(last, 1), last)
    below = np.maximum(above - 1, 0)
    width = np.where(above > below, candidates[above] - candidates[below], 1.0)
    share = np.clip((thresholds - candidates[below]) / width, 0.0, 1.0)
    each = np.arange(len(thresholds))
    steps: Float64 = steps_left[each, below] * (1 - share) + steps_left[each, above] * share
    return steps


def highest_within(steps_left: Float64, candidates: Float64, max_steps: Float64) -> Float64:
    """The highest threshold, interpolated between the candidates, at which the steps left are at most `max_steps`; the
    lowest candidate where none fits. Shapes: steps_left [n, c], max_steps [n] -> [n]."""
    steps = np.maximum.accumulate(steps_left, axis=1)  # an estimate may fall as the threshold rises
    fitting = (steps <= max_steps[:, None]).sum(axis=1)
    each, last = np.arange(len(steps)), len(candidates) - 1
    low, high = np.clip(fitting - 1, 0, last), np.minimum(fitting, last)
    rise = np.maximum(steps[each, high] - steps[each, low], 1e-9)
    share = np.clip((max_steps - steps[each, low]) / rise, 0.0, 1.0)
    chosen: Float64 = candidates[low] + share * (candidates[high] - candidates[low])
    return chosen
