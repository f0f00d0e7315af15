"""The instances as parallel arrays, with the load that the scheduler has put on each."""

from dataclasses import dataclass

import numpy as np

from shared.arrays import Bool, Float64, Int32, Int64
from shared.messages.instances import Instance, InstanceState
from shared.messages.steps import CACHE, RECOMPUTE, StepKind
from shared.profile import LatencyProfile

BUCKET = 32  # tokens between the points at which latencies are kept; between them they are interpolated
KINDS = len(StepKind)
POINTS = 513  # up to 16,384 tokens; above that they grow with the tokens
LAST = BUCKET * (POINTS - 1)
ALL = slice(None)  # slots


Slots = Int32 | Int64 | slice
Tokens = Int32 | Int64 | Float64


@dataclass(frozen=True, slots=True)
class _FullBatches:
    """What the open instances can do at most."""

    block_length: float
    slots: Int64  # [n]
    best_rate: float  # tokens per second of all, recomputing at their best batch sizes
    cache_tokens: Float64  # [n], of the largest batch of cache steps
    cache_s: Float64  # [n], what it takes


class Fleet:
    """One slot an instance, slots reused. Loads count requests placed, from placement to finish or move."""

    def __init__(self, capacity: int = 16) -> None:
        self.instances: list[Instance | None] = [None] * capacity
        self.slot_of: dict[str, int] = {}
        self.open: Bool = np.zeros(capacity, dtype=np.bool_)  # takes requests it does not hold yet
        self.silent: Bool = np.zeros(capacity, dtype=np.bool_)  # let the time for a step pass, said nothing since
        self.in_touch: Bool = np.zeros(capacity, dtype=np.bool_)  # has heard all since it was told what to forget
        self.drain_until_s: Float64 = np.zeros(capacity)  # Unix time; closed, it keeps requests mid-block so long
        self.tokens: Int64 = np.zeros(capacity, dtype=np.int64)  # prompt and output tokens of its requests
        self.requests: Int32 = np.zeros(capacity, dtype=np.int32)
        self.max_tokens: Int64 = np.zeros(capacity, dtype=np.int64)  # of one batch, and of its KV cache
        self.max_requests: Int32 = np.zeros(capacity, dtype=np.int32)
        self.latency_s: Float64 = np.zeros((capacity, KINDS, POINTS))  # by step kind and bucket of tokens
        self._rise_s: Float64 = np.zeros_like(self.latency_s)  # to the next bucket; 0 from the last
        self._flatten()
        self._full: _FullBatches | None = None  # kept until an instance or the block length changes

    def __len__(self) -> int:
        return len(self.slot_of)

    def name(self, slot: int) -> str:
        instance = self.instances[slot]
        assert instance is not None, f"slot {slot} is free"
        return instance.instance_id

    def update(self, instance: Instance) -> int:
        """Add an instance or take over what changed of it; its slot."""
        slot = self.slot_of.get(instance.instance_id)
        if slot is None:
            slot = self._free_slot()
            self.slot_of[instance.instance_id] = slot
            self.tokens[slot] = self.requests[slot] = 0
            self.in_touch[slot] = self.silent[slot] = False
        known = self.instances[slot]
        if known is None or known.profile != instance.profile:
            self.latency_s[slot] = _latency_grid(instance)
            self._rise_s[slot, :, :-1] = np.diff(self.latency_s[slot])
        self._full = None
        self.instances[slot] = instance
        self.open[slot] = instance.state is InstanceState.READY
        self.drain_until_s[slot] = instance.drain_until_s
        self.max_tokens[slot] = min(instance.max_batch_tokens, instance.cache_tokens or instance.max_batch_tokens)
        self.max_requests[slot] = instance.max_batch_requests
        return slot

    def remove(self, instance_id: str) -> int | None:
        """Forget an instance; the slot it had, None if it was not known."""
        slot = self.slot_of.pop(instance_id, None)
        if slot is not None:
            self.instances[slot] = None
            self.open[slot] = False
            self._full = None
        return slot

    def load(self, slot: int, tokens: int) -> None:
        """One more request, of so many tokens; a negative number takes one off."""
        self.tokens[slot] += tokens
        self.requests[slot] += 1 if tokens > 0 else -1

    def recompute_latency_s(self, slots: Slots, tokens: Tokens) -> Float64:
        """Seconds of one recompute step with these batch tokens on each of these slots. Shapes: [n], [n] -> [n]."""
        return self._latency(slots, RECOMPUTE, tokens)

    def cache_latency_s(self, slots: Slots, tokens: Tokens) -> Float64:
        """Seconds of one cache step with these batch tokens on each of these slots. Shapes: [n], [n] -> [n]."""
        return self._latency(slots, CACHE, tokens)

    def throughput(self, request_tokens: float, block_length: float, *, caching: bool) -> float:
        """Tokens per second that all open instances can compute together.

        Source: ClusterCapacity of Algorithm 2: each instance at its best batch size; with a cache that of
        Algorithm 4: full batches of cache steps, one recompute step of a mean request a block.
        """
        if self._full is None or self._full.block_length != block_length:
            self._full = self._full_batches(block_length)
        full = self._full
        if not caching:
            return full.best_rate
        recompute_s = self.recompute_latency_s(full.slots, np.full(len(full.slots), request_tokens))
        tokens = full.cache_tokens * (block_length - 1) + request_tokens
        return float((tokens / (full.cache_s * (block_length - 1) + recompute_s)).sum())

    def _full_batches(self, block_length: float) -> "_FullBatches":
        slots = self.open.nonzero()[0]
        batch = BUCKET * np.arange(1, POINTS)
        within = np.minimum(self.max_tokens[slots], batch[-1])[:, None] >= batch
        rates = np.where(within, batch / self.latency_s[slots, RECOMPUTE, 1:], 0.0)
        cache_tokens: Float64 = block_length * self.max_requests[slots].astype(np.float64)
        cache_s = self.cache_latency_s(slots, cache_tokens)
        return _FullBatches(block_length, slots, float(rates.max(axis=1, initial=0.0).sum()), cache_tokens, cache_s)

    def _latency(self, slots: Slots, kind: int, tokens: Tokens) -> Float64:
        at: Float64 = tokens / BUCKET
        if np.count_nonzero(at > POINTS - 1):
            return self._latency(slots, kind, np.minimum(tokens, LAST)) * np.maximum(at / (POINTS - 1), 1.0)
        low = at.astype(np.int64)
        point = self._curve_at[kind][slots] + low
        latency_s: Float64 = self._flat_latency_s[point] + (at - low) * self._flat_rise_s[point]
        return latency_s

    def _flatten(self) -> None:
        """Views in which one index finds a point of a curve: where each slot's begin, by kind, and the points."""
        begin = np.arange(len(self.latency_s)) * (KINDS * POINTS)
        self._curve_at = [begin + kind * POINTS for kind in range(KINDS)]
        self._flat_latency_s, self._flat_rise_s = self.latency_s.reshape(-1), self._rise_s.reshape(-1)

    def _free_slot(self) -> int:
        for slot, instance in enumerate(self.instances):
            if instance is None:
                return slot
        slot = len(self.instances)
        self.instances.extend([None] * slot)
        for name in (
            "open",
            "silent",
            "in_touch",
            "drain_until_s",
            "tokens",
            "requests",
            "max_tokens",
            "max_requests",
            "latency_s",
            "_rise_s",
        ):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self._flatten()
        return slot


def _latency_grid(instance: Instance) -> Float64:
    """Seconds, [kinds, POINTS], at multiples of BUCKET tokens; ones where the instance brings no profile, so that
    all such instances look alike. Without cache rows a cache step counts as a recompute step of its tokens."""
    if not instance.profile:
        return np.ones((len(StepKind), POINTS))
    profile = LatencyProfile.from_csv(instance.profile)
    tokens = BUCKET * np.arange(POINTS)
    recompute_s = profile.latency_s(instance.tp_degree, tokens, StepKind.RECOMPUTE)
    if (instance.tp_degree, StepKind.CACHE) not in profile.curves:
        return np.stack([recompute_s, recompute_s])
    return np.stack([recompute_s, profile.latency_s(instance.tp_degree, tokens, StepKind.CACHE)])
