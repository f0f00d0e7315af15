"""Which of the requests on an instance step in its next iteration. A request that sits out keeps its place and cache.

Arrays hold n requests and k instances; `group` is the index of each request's instance, [n].
"""

from collections.abc import Callable

import numpy as np

from shared.arrays import Bool, Float64, Int64

MIN_BATCH = 2  # most urgent requests of an instance that always step
RECOMPUTE_SHARE = 0.3  # of the steps to choose from; from this share on, the recompute steps run


def within_pace(group: Int64, pace_s: Float64, joined: Bool, iteration_s: Callable[[Int64, Int64], Float64]) -> Bool:
    """The requests that may step: the most urgent of each instance, as many as its most urgent one can afford.

    Shapes: pace_s [n], the longest iteration that each request can afford (infinity: any);
    joined [n], requests that are in the batch already -> [n]. `iteration_s(group, requests)` is the latency of an
    iteration by its requests, [m], [m] -> [m].
    """
    requests = np.bincount(group)
    affordable_s = np.full(len(requests), np.inf)
    np.minimum.at(affordable_s, group, pace_s)
    if np.all(iteration_s(np.arange(len(requests)), requests) <= affordable_s):
        return np.ones(len(group), dtype=np.bool_)
    order = np.lexsort((pace_s, ~joined, group))
    ordered = group[order]
    rank = np.arange(len(group)) - (requests.cumsum() - requests)[ordered]
    keeps = np.empty(len(group), dtype=np.bool_)
    keeps[order] = (rank < MIN_BATCH) | (iteration_s(ordered, rank + 1) <= affordable_s[ordered])
    return keeps | joined


def of_one_kind(group: Int64, recomputes: Bool, joined: Bool, separates: Bool) -> Bool:
    """The requests that step if an instance runs one kind of step per iteration: the recompute steps once enough of
    them have gathered, until then the cache steps.

    Shapes: recomputes and joined [n]: as in `within_pace`; separates [k]: whether it runs the kinds separately. -> [n]
    """
    if np.count_nonzero(recomputes) in (0, len(recomputes)):
        return np.ones(len(group), dtype=np.bool_)
    k = len(separates)
    requests = np.bincount(group, minlength=k)
    runs_recompute = np.bincount(group[recomputes], minlength=k) >= RECOMPUTE_SHARE * requests
    runs_both = ~separates
    if np.count_nonzero(joined):
        has_joined = np.bincount(group[joined], minlength=k)
        recomputes_joined = np.bincount(group[joined & recomputes], minlength=k)
        runs_recompute = np.where(has_joined > 0, recomputes_joined == has_joined, runs_recompute)
        runs_both |= (recomputes_joined > 0) & (recomputes_joined < has_joined)
    fits: Bool = (recomputes == runs_recompute[group]) | runs_both[group] | joined
    return fits
