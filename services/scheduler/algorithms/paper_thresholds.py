"""The confidence threshold that fits a request's remaining SLO, of the policy `paper`: Algorithm 1, with a KV cache 5.

Arrays hold n requests and c candidate thresholds, ascending. Allowed thresholds are a range of candidates, given by its
lowest and highest index.
"""

import numpy as np

from shared.arrays import Float64, Int64


def time_left_s(
    steps_left: Float64, recompute_left: Float64, recompute_latency_s: Float64, cache_latency_s: Float64
) -> Float64:
    """Predicted time to the last token, at each threshold.

    Source: PredictedTimeLeft of Algorithm 1 (without a cache every step recomputes: recompute_left = steps_left) and
    of Algorithm 5. Latencies are those of one step on the request's instance at its present load.
    Shapes: steps_left and recompute_left [n, c]; latencies [n]; returns [n, c]. Units: steps, seconds.
    """
    cache_left = steps_left - recompute_left
    return cache_left * cache_latency_s[:, None] + recompute_left * recompute_latency_s[:, None]


def choose_thresholds(left_s: Float64, slo_left_s: Float64, lowest: Int64, highest: Int64) -> Int64:
    """The highest allowed threshold whose predicted time left fits; the lowest allowed where none fits.

    Source: Algorithm 1, UpdateConfThreshold.
    Shapes: left_s [n, c] of time_left_s; the others [n]; returns [n], indices of candidates.
    """
    candidates = np.arange(left_s.shape[1])
    fits = (left_s <= slo_left_s[:, None]) & (candidates <= highest[:, None])
    chosen: Int64 = np.maximum((fits * candidates).max(axis=1), lowest)
    return chosen
