"""Seconds of iterations before their batches are known, from each instance's linear costs: a base per iteration and a
slope per block or token (`InstanceCosts`), times the observed correction.

Arrays hold n requests and k instances.
"""

import numpy as np

from services.scheduler.state.fleet import ALL, Fleet
from services.scheduler.state.instance_costs import BUCKET
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float64, Int32, Int64
from shared.messages.steps import CACHE

BATCH_SHARE = 0.6  # assumed batch: this share of the requests that an instance has room for
RECOMPUTE_BATCH_SHARE = 0.2  # of these, the recompute steps of an iteration, if the other steps use the cache


def booked_shares(
    rows: Int64, cache_steps: Float64, recompute_steps: Float64, table: RequestTable, fleet: Fleet
) -> Float64:
    """The share of the SLO window that the steps left of all requests take, if one instance alone ran them, for each
    open instance. Each request's busy-seconds count by its own SLO. Shapes: [n] each -> [k]."""
    instances = fleet.open.nonzero()[0]
    rates = _rates(rows, cache_steps, recompute_steps, table, fleet).sum(axis=1)
    share = rates @ _unit_seconds(instances, rows, table, fleet)
    corrected: Float64 = np.maximum(share * fleet.correction[instances], np.finfo(float).tiny)
    return corrected


def request_parts(
    rows: Int64, cache_steps: Float64, recompute_steps: Float64, table: RequestTable, fleet: Fleet
) -> Float64:
    """The part of each request in what `booked_shares` adds up, by the costs of one open instance.
    Shapes: [n] each -> [n], with the sum 1."""
    first = fleet.open.nonzero()[0][:1]
    [unit_s] = _unit_seconds(first, rows, table, fleet).T
    share = np.maximum(unit_s @ _rates(rows, cache_steps, recompute_steps, table, fleet), np.finfo(float).tiny)
    parts: Float64 = share / share.sum()
    return parts


def cluster_seconds(
    rows: Int64, cache_steps: Float64, recompute_steps: Float64, scale: Float64, table: RequestTable, fleet: Fleet
) -> Float64:
    """The time that all open instances together work for each request. `scale`: the factor on each instance's costs.
    Shapes: [n], [n], [n], [instances] -> [n]."""
    instances = fleet.open.nonzero()[0]
    unit_s = np.maximum(_unit_seconds(instances, rows, table, fleet) * scale[instances], np.finfo(float).tiny)
    seconds: Float64 = (1 / (1 / unit_s).sum(axis=1)) @ _amounts(rows, cache_steps, recompute_steps, table, fleet)
    return seconds


def _rates(rows: Int64, cache_steps: Float64, recompute_steps: Float64, table: RequestTable, fleet: Fleet) -> Float64:
    """The `_amounts` of each request per second of its SLO. Shapes: [n] each -> [5, n]."""
    blocks = table.block_length[rows] / BUCKET
    base_s, slope_s = (of[fleet.open].min(initial=1.0) for of in (fleet.cache_base_s, fleet.cache_slope_s))
    least_s = (cache_steps + recompute_steps) * (base_s + blocks * slope_s)
    slo_s = np.maximum(table.slo_s[rows], least_s)  # an SLO that no instance can meet is no unlimited load
    rates: Float64 = _amounts(rows, cache_steps, recompute_steps, table, fleet) / slo_s
    return rates


def _amounts(rows: Int64, cache_steps: Float64, recompute_steps: Float64, table: RequestTable, fleet: Fleet) -> Float64:
    """Of each request: cache steps, their blocks of BUCKET tokens, their further keys, recompute steps, and their
    tokens. Shapes: [n] each -> [5, n]."""
    blocks = table.block_length[rows] / BUCKET
    fed_blocks = cache_steps * blocks
    if table.pipeline.exact:  # the first step of each further block feeds the one before it, too
        fed_blocks += (table.blocks_left[rows] - 1) * blocks
    keys = cache_steps * further_keys(rows, table, fleet)
    return np.stack([cache_steps, fed_blocks, keys, recompute_steps, recompute_steps * table.recompute_tokens(rows)])


def further_keys(rows: Int64, table: RequestTable, fleet: Fleet) -> Float64:
    """The keys that a cache step of each request attends to beyond those that the costs of its tokens cover.
    Shapes: [n] -> [n]."""
    covered = fleet.covered_keys[fleet.open].min(initial=np.inf)
    if np.isinf(covered):
        return np.zeros(len(rows))
    keys = table.text_end(rows) if table.pipeline.exact else table.tokens[rows]
    further: Float64 = np.maximum(keys - covered * table.block_length[rows], 0.0)
    return further


def _unit_seconds(instances: Int64, rows: Int64, table: RequestTable, fleet: Fleet) -> Float64:
    """The busy-seconds of one of each of `_amounts`, in a batch of the assumed size. Shapes: -> [5, k]."""
    room = np.minimum(fleet.max_requests[instances], fleet.max_tokens[instances] / table.tokens[rows].mean())
    batch = np.maximum(BATCH_SHARE * room, 1.0)
    recompute_batch, recompute_base_s = batch, fleet.recompute_base_s[instances]
    if table.pipeline.caching:
        recompute_batch = np.maximum(RECOMPUTE_BATCH_SHARE * batch, 1.0)
        recompute_base_s = _recompute_base_s(instances, fleet)
    return np.stack(
        [
            fleet.cache_base_s[instances] / batch,
            fleet.cache_slope_s[instances],
            fleet.key_s[instances, CACHE],
            recompute_base_s / recompute_batch,
            fleet.recompute_slope_s[instances],
        ]
    )


class BatchLatency:
    """Seconds of an iteration of several mean requests, of which `recompute_share` recompute, on every instance."""

    def __init__(
        self, fleet: Fleet, tokens: float, block_length: float, recompute_share: float, keys: float = 0.0
    ) -> None:
        """`tokens` (fed by a recompute step), `block_length` and `keys` (as `further_keys`) are a mean request's."""
        each_s = (1 - recompute_share) * (block_length / BUCKET * fleet.cache_slope_s + keys * fleet.key_s[:, CACHE])
        each_s += recompute_share * tokens * fleet.recompute_slope_s
        self._recompute_share = recompute_share
        base_s, recompute_base_s = fleet.cache_base_s, _recompute_base_s(ALL, fleet)
        if recompute_share == 1.0:  # without a cache
            base_s, recompute_base_s = fleet.recompute_base_s, np.zeros_like(recompute_base_s)
        self._base_s, self._each_s = base_s * fleet.correction, each_s * fleet.correction
        self._recompute_s = recompute_base_s * fleet.correction

    def seconds(self, instances: Int32 | Int64, requests: Int32 | Int64) -> Float64:
        """The latency with this number of requests. Shapes: [n], [n] -> [n]."""
        latency_s: Float64 = self._base_s[instances] + requests * self._each_s[instances]
        latency_s += np.minimum(requests * self._recompute_share, 1.0) * self._recompute_s[instances]
        return latency_s


def pace_s(rows: Int64, table: RequestTable, fleet: Fleet) -> Float64:
    """Seconds between two steps of a request: as observed, else an iteration of all requests. Shapes: [n] -> [n]."""
    instances = table.instance[rows]
    observed_s: Float64 = fleet.pace_s[instances]
    if np.count_nonzero(observed_s) == len(rows):
        return observed_s
    blocks = fleet.requests[instances] * table.block_length[rows] / BUCKET
    iteration_s = fleet.cache_base_s[instances] + blocks * fleet.cache_slope_s[instances]
    return np.where(observed_s > 0, observed_s, iteration_s)


def _recompute_base_s(instances: Int64 | slice, fleet: Fleet) -> Float64:
    """The seconds that recompute steps add to the base of an iteration, [k]."""
    base_s: Float64 = np.maximum(fleet.recompute_base_s[instances] - fleet.shared_launch_s[instances], 0.0)
    return base_s
