"""The instances as parallel arrays, with the load that the scheduler places on each."""

from typing import Annotated

import numpy as np

from services.scheduler.state.columns import Columns
from shared.arrays import Bool, Float64, Int32, Int64
from shared.messages.instances import Instance, InstanceState
from shared.messages.steps import CACHE, RECOMPUTE, StepKind
from shared.profile import LatencyProfile

BUCKET = 32  # tokens between two points of a latency curve; latencies between the points are interpolated
KINDS = len(StepKind)
POINTS = 513  # of a curve, up to 16,384 tokens; above, a latency is proportional to the tokens
MAX_GRID_TOKENS = BUCKET * (POINTS - 1)
ALL = slice(None)  # instances

Instances = Int32 | Int64 | slice  # indices
Tokens = Int32 | Int64 | Float64


class Fleet(Columns):
    """One index per instance; indices are reused. The load of an instance is the requests placed on it."""

    open: Bool  # accepts requests that it does not hold yet
    unresponsive: Bool  # a step timed out, and no result arrived since
    synchronized: Bool  # has received every drop since the last `forget_below`
    drain_until_s: Float64  # Unix time; until then a closed instance keeps requests within a block
    tokens: Int64  # prompt and output tokens of its requests
    requests: Int32
    max_tokens: Int64  # of one batch, and of its KV cache
    max_requests: Int32
    latency_s: Annotated[Float64, KINDS, POINTS]  # by step kind and bucket of tokens
    _rise_s: Annotated[Float64, KINDS, POINTS]  # from each point to the next; 0 from the last

    def __init__(self, capacity: int = 16) -> None:
        super().__init__(capacity)
        self.instances: list[Instance | None] = [None] * capacity
        self.index_of: dict[str, int] = {}  # by instance id
        self._flatten()
        self._recompute_rate: float | None = None  # cached until an instance changes, tokens per second

    def instance_id(self, index: int) -> str:
        instance = self.instances[index]
        assert instance is not None, f"index {index} is free"
        return instance.instance_id

    def update(self, instance: Instance) -> int:
        """Add an instance, or apply its new registration. Returns: its index."""
        index = self.index_of.get(instance.instance_id)
        if index is None:
            index = self._free_index()
            self.index_of[instance.instance_id] = index
            self.clear(index)
        known = self.instances[index]
        if known is None or known.profile != instance.profile:
            self.latency_s[index] = _latency_grid(instance)
            self._rise_s[index, :, :-1] = np.diff(self.latency_s[index])
        self._recompute_rate = None
        self.instances[index] = instance
        self.open[index] = instance.state is InstanceState.READY
        self.drain_until_s[index] = instance.drain_until_s
        self.max_tokens[index] = min(instance.max_batch_tokens, instance.cache_tokens or instance.max_batch_tokens)
        self.max_requests[index] = instance.max_batch_requests
        return index

    def remove(self, instance_id: str) -> int | None:
        """Forget an instance. Returns: its former index; None if it is unknown."""
        index = self.index_of.pop(instance_id, None)
        if index is not None:
            self.instances[index] = None
            self.open[index] = False
            self._recompute_rate = None
        return index

    def add_load(self, index: int, tokens: int, *, requests: int) -> None:
        """Add requests with these prompt and output tokens to the load of an instance, or remove (negative) ones."""
        self.tokens[index] += tokens
        self.requests[index] += requests

    def recompute_latency_s(self, instances: Instances, tokens: Tokens) -> Float64:
        """Latency of a recompute step with these batch tokens on each instance. Shapes: [n], [n] -> [n]."""
        return self._latency(instances, RECOMPUTE, tokens)

    def cache_latency_s(self, instances: Instances, tokens: Tokens) -> Float64:
        """Latency of a cache step with these batch tokens on each instance. Shapes: [n], [n] -> [n]."""
        return self._latency(instances, CACHE, tokens)

    def throughput(self, request_tokens: float, block_length: float, *, caching: bool) -> float:
        """Tokens per second that all open instances compute together.

        Source: ClusterCapacity of Algorithm 2: each instance at its best batch size; with a cache that of
        Algorithm 4: full batches of cache steps, one recompute step of a mean request per block.
        """
        if not caching:
            if self._recompute_rate is None:
                self._recompute_rate = self._best_recompute_rate()
            return self._recompute_rate
        instances = self.open.nonzero()[0]
        cache_tokens: Float64 = block_length * self.max_requests[instances].astype(np.float64)
        cache_s = self.cache_latency_s(instances, cache_tokens)
        recompute_s = self.recompute_latency_s(instances, np.full(len(instances), request_tokens))
        tokens = cache_tokens * (block_length - 1) + request_tokens
        return float((tokens / (cache_s * (block_length - 1) + recompute_s)).sum())

    def _best_recompute_rate(self) -> float:
        batch = BUCKET * np.arange(1, POINTS)
        within = np.minimum(self.max_tokens[self.open], batch[-1])[:, None] >= batch
        rates = np.where(within, batch / self.latency_s[self.open, RECOMPUTE, 1:], 0.0)
        return float(rates.max(axis=1, initial=0.0).sum())

    def _latency(self, instances: Instances, kind: int, tokens: Tokens) -> Float64:
        at: Float64 = tokens / BUCKET
        if np.count_nonzero(at > POINTS - 1):
            last_s = self._latency(instances, kind, np.minimum(tokens, MAX_GRID_TOKENS))
            return last_s * np.maximum(at / (POINTS - 1), 1.0)
        low = at.astype(np.int64)
        point = self._curve_at[kind][instances] + low
        latency_s: Float64 = self._flat_latency_s[point] + (at - low) * self._flat_rise_s[point]
        return latency_s

    def _flatten(self) -> None:
        """Make flat views of the curves, in which one index selects a point."""
        first = np.arange(len(self.latency_s)) * (KINDS * POINTS)
        self._curve_at = [first + kind * POINTS for kind in range(KINDS)]
        self._flat_latency_s, self._flat_rise_s = self.latency_s.reshape(-1), self._rise_s.reshape(-1)

    def _free_index(self) -> int:
        if None not in self.instances:
            self.instances.extend([None] * len(self.instances))
            self.double()
            self._flatten()
        return self.instances.index(None)


def _latency_grid(instance: Instance) -> Float64:
    """Latencies in seconds, [KINDS, POINTS], at multiples of BUCKET tokens. Without a profile all are 1, so that such
    instances are equal. Without cache rows a cache step counts as a recompute step of its tokens."""
    if not instance.profile:
        return np.ones((len(StepKind), POINTS))
    profile = LatencyProfile.from_csv(instance.profile)
    tokens = BUCKET * np.arange(POINTS)
    recompute_s = profile.latency_s(instance.tp_degree, tokens, StepKind.RECOMPUTE)
    if (instance.tp_degree, StepKind.CACHE) not in profile.curves:
        return np.stack([recompute_s, recompute_s])
    return np.stack([recompute_s, profile.latency_s(instance.tp_degree, tokens, StepKind.CACHE)])
