"""One instance: a queue of step jobs, run in one batch after another.

It forms batches as the worker does: waiting jobs in order, up to the limits on tokens and requests. A cache step
computes its block, a recompute step the whole sequence. With an exact cache, that of block-causal models, a recompute
step computes the text to the end of its block, and the first cache step of a block also the block before it. An
iteration's latency is its cost by the profile.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from services.scheduler.state.request_table import ROW_MASK
from shared.arrays import Bool, Int32, Int64, unpack_float32, unpack_int32, unpack_int64
from shared.iteration_cost import IterationCost
from shared.messages.instances import Instance
from shared.messages.steps import CACHE, StepJobs
from simulator.unmasking_model import hundredths_of

# Step jobs as columns, so that batches are joined and split at once. Shape: [7, n].
Batch = Int64
# Threshold in hundredths; cached: 0 or 1; tokens fed; keys attended
TICKETS, REQUESTS, STEPS, HUNDREDTHS, CACHED, TOKENS, KEYS = range(7)


def joined(batches: Sequence[Batch]) -> Batch:
    return batches[0] if len(batches) == 1 else np.concatenate(batches, axis=1)


@dataclass(frozen=True, slots=True)
class FedTokens:
    """The tokens that jobs feed and the keys that they attend to. Shapes: [r], by request."""

    lengths: Int64  # tokens of prompt and output
    prompts: Int64  # tokens
    block_length: int
    exact: bool  # whether the cache is exact

    def of(self, requests: Int64, blocks: Int32, begins: Bool, cached: Bool) -> tuple[Int64, Int64]:
        """The tokens and the keys of each job; `begins`: whether it is the first of its block. Shapes: [n] each."""
        if not self.exact:
            keys = self.lengths[requests]
            return np.where(cached, self.block_length, keys), keys
        keys = self.prompts[requests] + (blocks + 1) * self.block_length
        follows = begins & (blocks > 0)
        return np.where(cached, self.block_length * (1 + follows), keys), keys


def read_jobs(messages: Sequence[StepJobs], request_at: Int64, masks_left: Int64, fed: FedTokens) -> list[Batch]:
    """The jobs of each message. `request_at` maps rows of the scheduler's table to requests; `masks_left` are those of
    each request's output."""
    tickets = unpack_int64(b"".join([message.tickets for message in messages]))
    batch = np.empty((7, len(tickets)), dtype=np.int64)
    batch[TICKETS] = tickets
    batch[REQUESTS] = requests = request_at[tickets & ROW_MASK]
    batch[STEPS] = unpack_int32(b"".join([message.steps for message in messages]))
    batch[HUNDREDTHS] = hundredths_of(unpack_float32(b"".join([message.thresholds for message in messages])))
    batch[CACHED] = cached = unpack_int32(b"".join([message.kinds for message in messages])) == CACHE
    blocks = unpack_int32(b"".join([message.blocks for message in messages]))
    begins = masks_left[requests] % fed.block_length == 0
    batch[TOKENS], batch[KEYS] = fed.of(requests, blocks, begins, cached)
    ends = list(accumulate(len(message.tickets) // 8 for message in messages))
    return [batch[:, start:end] for start, end in pairwise([0, *ends])]


class SimulatedInstance:
    """Times iterations; SimulatedOutputs has their results."""

    def __init__(self, instance: Instance, cost: IterationCost) -> None:
        self.instance = instance
        self.running: Batch | None = None
        self.latency_s = 0.0  # of the running iteration
        self._queue: deque[Batch] = deque()
        self._counts_keys = bool(cost.cache.key_s or cost.recompute.key_s)
        self._seconds = lru_cache(4096)(cost.seconds)

    def accept(self, batch: Batch) -> None:
        self._queue.append(batch)

    def start(self) -> float | None:
        """Start the next iteration if none is running and jobs wait. Returns: its latency in seconds."""
        if self.running is not None or not self._queue:
            return None
        waiting = joined(self._queue)
        self._queue.clear()
        tokens = sum(waiting[TOKENS].tolist())
        if tokens > self.instance.max_batch_tokens or waiting.shape[1] > self.instance.max_batch_requests:
            waiting = self._first(waiting)
            tokens = int(waiting[TOKENS].sum())
        self.running = waiting
        cached = int(waiting[TOKENS] @ waiting[CACHED])
        recomputed = tokens - cached  # a recompute step attends to the tokens it feeds
        keys = int(waiting[KEYS].sum()) - recomputed if self._counts_keys else 0
        self.latency_s = float(
            self._seconds(cache_tokens=cached, cache_keys=keys, recompute_tokens=recomputed, recompute_keys=recomputed)
        )
        return self.latency_s

    def finish(self) -> Batch:
        assert self.running is not None, "no iteration is running"
        batch, self.running = self.running, None
        return batch

    def _first(self, waiting: Batch) -> Batch:
        """The first jobs that fit, at least one; the others are queued again."""
        fits = np.cumsum(waiting[TOKENS]) <= self.instance.max_batch_tokens
        count = max(1, min(int(fits.sum()), self.instance.max_batch_requests))
        if count < waiting.shape[1]:
            self._queue.append(waiting[:, count:])
        return waiting[:, :count]
