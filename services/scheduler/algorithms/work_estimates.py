"""Seconds of iterations before their batches are known: those of batches of mean requests, by the costs of each
instance (`InstanceCosts`) and the observed correction.

Arrays hold n requests and k instances.
"""

from dataclasses import dataclass

import numpy as np

from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float64, Int32, Int64
from shared.iteration_cost import in_one_iteration

BATCH_SHARE = 0.6  # assumed batch: this share of the requests that an instance has room for
RECOMPUTE_BATCH_SHARE = 0.2  # of these, the recompute steps of an iteration, if the other steps use the cache
MIN_UNIT_S = 1e-15  # of a token or a key; keys may cost nothing


def booked_shares(
    rows: Int64, cache_steps: Float64, recompute_steps: Float64, table: RequestTable, fleet: Fleet
) -> Float64:
    """The share of its SLO window that each request's steps left take, if all open instances work for it together;
    infinity if none is open. Shapes: [n] each -> [n]."""
    if not fleet.open.any():
        return np.full(len(rows), np.inf)
    seconds = cluster_seconds(rows, cache_steps, recompute_steps, fleet.correction, table, fleet)
    instances, block = fleet.open.nonzero()[0], np.array(table.block_length[rows].mean())
    step_s = (fleet.cache_latency_s(instances, block) * fleet.correction[instances]).min()
    # An SLO that no instance can meet is no unlimited load
    shares: Float64 = seconds / np.maximum(table.planned_slo_s[rows], (cache_steps + recompute_steps) * step_s)
    return shares


def cluster_seconds(
    rows: Int64, cache_steps: Float64, recompute_steps: Float64, scale: Float64, table: RequestTable, fleet: Fleet
) -> Float64:
    """The time that all open instances together work for each request, if they share all work by their speeds.
    `scale`: the factor on each instance's costs. Shapes: [n], [n], [n], [instances] -> [n]."""
    instances = fleet.open.nonzero()[0]
    unit_s = np.maximum(_unit_seconds(instances, rows, table, fleet) * scale[instances], MIN_UNIT_S)
    seconds: Float64 = (1 / (1 / unit_s).sum(axis=1)) @ _amounts(rows, cache_steps, recompute_steps, table)
    return seconds


def _amounts(rows: Int64, cache_steps: Float64, recompute_steps: Float64, table: RequestTable) -> Float64:
    """Of each request: the tokens that its cache steps feed, their keys, and the tokens that its recompute steps feed.
    Shapes: [n] each -> [3, n]."""
    fed_blocks = cache_steps
    if table.pipeline.exact:  # the first step of each further block feeds the one before it, too
        fed_blocks = cache_steps + table.blocks_left[rows] - 1
    tokens = table.recompute_tokens(rows)
    return np.stack([fed_blocks * table.block_length[rows], cache_steps * tokens, recompute_steps * tokens])


def _unit_seconds(instances: Int64, rows: Int64, table: RequestTable, fleet: Fleet) -> Float64:
    """The busy-seconds of one of each of `_amounts`, in a batch of the assumed size. Shapes: -> [3, k]."""
    room = np.minimum(fleet.max_requests[instances], fleet.max_tokens[instances] / table.tokens[rows].mean())
    batch = np.maximum(BATCH_SHARE * room, 1.0)
    whole = batch * table.recompute_tokens(rows).mean()  # fed if all recompute, and the keys if none does
    if not table.pipeline.caching:
        none = np.zeros(len(instances))
        return np.stack([none, none, fleet.recompute_latency_s(instances, whole) / whole])
    recompute_tokens = whole * np.maximum(RECOMPUTE_BATCH_SHARE, 1 / batch)
    tokens = batch * table.block_length[rows].mean()
    cache_s = fleet.cache_latency_s(instances, tokens, whole)
    recompute_s = fleet.recompute_latency_s(instances, recompute_tokens)
    both_s = in_one_iteration(cache_s, recompute_s, fleet.shared_launch_s[instances])
    key_s = fleet.key_s[instances]
    return np.stack([(cache_s - whole * key_s) / tokens, key_s, (both_s - cache_s) / recompute_tokens])


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """Seconds of an iteration of several mean requests, of which `recompute_share` recompute, on every instance."""

    fleet: Fleet
    tokens: float  # fed by a recompute step, and the keys of a cache step
    block_length: float
    recompute_share: float

    def seconds(self, instances: Int32 | Int64, requests: Int32 | Int64) -> Float64:
        """The mean latency with this number of requests. Shapes: [n], [n] -> [n]."""
        recomputing = self.recompute_share * requests
        cached = requests - recomputing
        fleet, recompute_tokens = self.fleet, np.maximum(recomputing, 1.0) * self.tokens
        cache_s = fleet.cache_latency_s(instances, cached * self.block_length, cached * self.tokens) * (cached > 0)
        recompute_s = fleet.recompute_latency_s(instances, recompute_tokens)
        both_s = in_one_iteration(cache_s, recompute_s, fleet.shared_launch_s[instances])
        # Below one recompute step on average, only that share of the iterations has one
        latency_s: Float64 = (cache_s + np.minimum(recomputing, 1.0) * (both_s - cache_s)) * fleet.correction[instances]
        return latency_s


def pace_s(rows: Int64, table: RequestTable, fleet: Fleet) -> Float64:
    """Seconds between two steps of a request: as observed, else an iteration of all requests. Shapes: [n] -> [n]."""
    instances = table.instance[rows]
    observed_s: Float64 = fleet.pace_s[instances]
    if np.count_nonzero(observed_s) == len(rows):
        return observed_s
    tokens = fleet.requests[instances] * table.block_length[rows]
    return np.where(observed_s > 0, observed_s, fleet.cache_latency_s(instances, tokens))
