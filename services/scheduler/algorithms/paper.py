"""The paper's Algorithms 1 and 2, with a KV cache 5 and 4: each request's confidence threshold, and load control.

Arrays hold n requests, for load control in the order of service, and c candidate thresholds, ascending. Allowed
thresholds are a range of candidates, given by its lowest and highest index.
"""

import numpy as np

from shared.arrays import Bool, Float64, Int64


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


def request_load(steps_left: Float64, recompute_left: Float64, tokens: Float64, block_length: Float64) -> Float64:
    """Tokens left to compute at each threshold.

    Source: ReqLoad of Algorithm 2 (without a cache every step recomputes: recompute_left = steps_left) and of
    Algorithm 4. Shapes: steps_left and recompute_left [n, c]; tokens (prompt and output) and block_length [n];
    returns [n, c].
    """
    load = steps_left - recompute_left
    load *= block_length[:, None]
    load += recompute_left * tokens[:, None]
    return load


def highest_allowed(load: Float64, lowest: Int64, capacity: float, guaranteed: Bool) -> Int64:
    """The highest threshold each request may use, so that the sum of loads at these stays within the capacity.

    In the order of service, each request takes the highest threshold that leaves all later requests their lowest.
    Source: Algorithm 2, UpdateAllowedConfThresholds, with the paper's extension for priorities: `guaranteed`
    requests keep the full range under any load. A request's own quality floor is its `lowest`.
    Departure: an estimated load can fall as the threshold rises; it is raised to the load of the threshold below, so
    that a higher threshold never counts as less work.
    Shapes: load [n, c] of request_load; lowest and guaranteed [n]; returns [n], indices of candidates.
    Units: load and capacity in tokens.
    """
    count, candidates = load.shape
    if count == 0:
        return np.empty(0, dtype=np.int64)
    load = load.copy()
    for i in range(1, candidates):  # several times faster than numpy's accumulate on a short axis
        np.maximum(load[:, i], load[:, i - 1], out=load[:, i])
    highest = np.full(count, candidates - 1)
    if float(load[:, -1].sum()) <= capacity:
        return highest
    least = load[np.arange(count), lowest][:, None]
    extra = np.maximum(load - least, 0.0)  # above the lowest candidate, [n, c]
    free = capacity - float(least.sum()) - float(extra[guaranteed, -1].sum())
    rest = (~guaranteed).nonzero()[0]
    highest[rest] = _take_in_order(extra[rest], lowest[rest], free)
    return highest


def _take_in_order(extra: Float64, lowest: Int64, free: float) -> Int64:
    """Each request in turn takes the highest candidate whose extra load is free.

    One round settles all requests up to the first whose best candidate no longer fits after the earlier requests. The
    free load only decreases, so there are few rounds.
    """
    count = len(extra)
    highest = lowest.copy()
    done = 0
    while done < count:
        part = extra[done:]
        best = np.maximum((part <= free).sum(axis=1) - 1, lowest[done:])  # extra ascends with the threshold
        wanted = part[np.arange(count - done), best]
        taken = wanted.cumsum()
        over = ((taken > free) & (wanted > 0)).nonzero()[0]
        settled = int(over[0]) if len(over) else count - done
        if settled == 0:  # no load is free: the other requests stay at their lowest
            break
        highest[done : done + settled] = best[:settled]
        free -= float(taken[settled - 1])
        done += settled
    return highest
