"""The instances as parallel arrays, with the load that the scheduler places on each."""

import numpy as np

from services.scheduler.state.instance_costs import BUCKET, POINTS, InstanceCosts
from services.scheduler.state.prefix_index import PrefixIndex
from shared.arrays import Bool, Float64, Int32, Int64
from shared.messages.instances import Instance, InstanceState
from shared.messages.steps import RECOMPUTE

ALL = slice(None)  # instances


class Fleet(InstanceCosts):
    """One index per instance; indices are reused. The load of an instance is the requests placed on it."""

    open: Bool  # accepts requests that it does not hold yet
    unresponsive: Bool  # a step timed out, and no result arrived since
    synchronized: Bool  # has received every drop since the last `forget_below`
    drain_until_s: Float64  # Unix time; until then a closed instance keeps requests within a block
    tight: Bool  # a full batch is too slow for one of its requests, at the last run of load control
    changed: Bool  # a request or a result arrived, or a request left, since its last batch was chosen
    sent_batch: Int64  # number of the last batch sent to it
    done_batch: Int64  # number of the last batch of which a result arrived
    pace_s: Float64  # moving average of the time between two steps of a request, waiting included; 0: unknown
    tokens: Int64  # prompt and output tokens of its requests
    requests: Int32
    max_tokens: Int64  # of its requests together
    max_batch_tokens: Int64  # that one iteration may compute
    max_requests: Int32

    def __init__(self, capacity: int = 16, *, exact: bool = False) -> None:
        """`exact`: whether finished blocks are cached for good."""
        super().__init__(capacity)
        self._exact = exact
        self.instances: list[Instance | None] = [None] * capacity
        self.index_of: dict[str, int] = {}  # by instance id
        self.prefixes = PrefixIndex()

    def instance_id(self, index: int) -> str:
        instance = self.instances[index]
        assert instance is not None, f"index {index} is free"
        return instance.instance_id

    def update(self, instance: Instance, now_s: float) -> int:
        """Add an instance, or apply its new registration, sent at `now_s`. Returns: its index."""
        index = self.index_of.get(instance.instance_id)
        if index is None:
            index = self._free_index()
            self.index_of[instance.instance_id] = index
            self.clear(index)
        known = self.instances[index]
        if known is None or known.profile != instance.profile:
            self.set_costs(index, instance)
        self.prefixes.update(index, instance.prefix_tokens, instance.prefix_page)
        self.changed[index] = True
        self.instances[index] = instance
        self.open[index] = instance.state is InstanceState.READY
        self.drain_until_s[index] = now_s + instance.drain_s - instance.draining_s
        self.max_tokens[index] = self._room(instance)
        self.max_batch_tokens[index] = instance.max_batch_tokens
        self.max_requests[index] = instance.max_batch_requests
        return index

    def _room(self, instance: Instance) -> int:
        """The most tokens of its requests together. A step computes whole texts, unless the cache is exact: then only
        blocks, and an instance divides the arrivals of an iteration by itself."""
        if self._exact and instance.cache_tokens:
            return instance.cache_tokens
        return min(instance.max_batch_tokens, instance.cache_tokens or instance.max_batch_tokens)

    def has_reconnected(self, instance: Instance) -> bool:
        """Whether the instance is known with an earlier connection to the bus."""
        known = self.instances[self.index_of[instance.instance_id]] if instance.instance_id in self.index_of else None
        return known is not None and known.connections != instance.connections

    def remove(self, instance_id: str) -> int | None:
        """Forget an instance. Returns: its former index; None if it is unknown."""
        index = self.index_of.pop(instance_id, None)
        if index is not None:
            self.instances[index] = None
            self.prefixes.forget(index)
            self.open[index] = False
        return index

    def add_load(self, index: int, tokens: int, *, requests: int) -> None:
        """Add requests with these prompt and output tokens to the load of an instance, or remove (negative) ones."""
        self.tokens[index] += tokens
        self.requests[index] += requests
        self.changed[index] = True
        if not self.requests[index]:  # a later request does not share its iterations
            self.pace_s[index] = 0.0

    def throughput(self, request_tokens: float, block_length: float, cache_steps: float | None) -> float:
        """Tokens per second that all open instances compute together. `cache_steps`: those of a mean request for each
        of its recompute steps; None: without a cache.

        Source: ClusterCapacity of Algorithm 2: each instance at its best batch size; with a cache that of
        Algorithm 4: full batches of cache steps, and one recompute step of a mean request. There each block has one
        recompute step, and a cache step for each other token.
        """
        if cache_steps is None:
            return self._best_recompute_rate()
        instances = self.open.nonzero()[0]
        cache_tokens: Float64 = block_length * self.max_requests[instances].astype(np.float64)
        cache_s = self.cache_latency_s(instances, cache_tokens)
        recompute_s = self.recompute_latency_s(instances, np.full(len(instances), request_tokens))
        tokens = cache_tokens * cache_steps + request_tokens
        return float((tokens / (cache_s * cache_steps + recompute_s)).sum())

    def _best_recompute_rate(self) -> float:
        batch = BUCKET * np.arange(1, POINTS)
        limits = np.minimum(self.max_batch_tokens, self.max_tokens)[self.open]
        within = np.minimum(limits, batch[-1])[:, None] >= batch
        rates = np.where(within, batch / self.latency_s[self.open, RECOMPUTE, 1:], 0.0)
        return float(rates.max(axis=1, initial=0.0).sum())

    def _free_index(self) -> int:
        if None not in self.instances:
            self.instances.extend([None] * len(self.instances))
            self.double()
        return self.instances.index(None)
