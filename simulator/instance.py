"""One instance: a queue of step jobs, and one batch of them after another.

As the worker does it: waiting jobs in their order, as many as the limits on tokens and requests allow; a cache step
feeds its block, a recompute step the whole sequence. An iteration takes as long as the profile says.
"""

from collections import deque
from collections.abc import Sequence
from functools import cache

import numpy as np

from shared.arrays import Int64, unpack_float32, unpack_int32, unpack_int64
from shared.messages.instances import Instance
from shared.messages.steps import StepJobs, StepKind
from shared.profile import LatencyProfile
from simulator.denoising import hundredths_of

RECOMPUTE, CACHE = int(StepKind.RECOMPUTE), int(StepKind.CACHE)  # members are slow to look up


# Step jobs: one row a column, so that batches are joined and cut in one go. Shape: [6, n].
Batch = Int64
TICKETS, REQUESTS, STEPS, HUNDREDTHS, CACHED, TOKENS = range(6)  # threshold in hundredths; cached 0 or 1; tokens fed


def joined(batches: Sequence[Batch]) -> Batch:
    """One after the other."""
    return batches[0] if len(batches) == 1 else np.concatenate(batches, axis=1)


def read_jobs(jobs: StepJobs, requests: Int64, lengths: Int64, block_length: int) -> Batch:
    """A message's jobs. `requests` [n] are their requests, `lengths` [n] the whole lengths of these in tokens."""
    batch = np.empty((6, len(requests)), dtype=np.int64)
    batch[TICKETS] = unpack_int64(jobs.tickets)
    batch[REQUESTS] = requests
    batch[STEPS] = unpack_int32(jobs.steps)
    batch[HUNDREDTHS] = hundredths_of(unpack_float32(jobs.thresholds))
    batch[CACHED] = cached = unpack_int32(jobs.kinds) == CACHE
    batch[TOKENS] = np.where(cached, block_length, lengths)
    return batch


class SimulatedInstance:
    """What is unmasked of its requests is not its business."""

    def __init__(self, instance: Instance, profile: LatencyProfile, block_length: int) -> None:
        self.instance = instance
        self.running: Batch | None = None
        self._queue: deque[Batch] = deque()
        self._block_length = block_length
        self._latency_s = cache(lambda kind, tokens: profile.latency_s(instance.tp_degree, tokens, StepKind(kind)))

    def accept(self, batch: Batch) -> None:
        """Queue jobs."""
        self._queue.append(batch)

    def start(self) -> float | None:
        """Begin the next iteration, if none is running and jobs wait. Returns: how long it takes, in seconds."""
        if self.running is not None or not self._queue:
            return None
        waiting = joined(self._queue)
        self._queue.clear()
        tokens = int(waiting[TOKENS].sum())
        if tokens > self.instance.max_batch_tokens or waiting.shape[1] > self.instance.max_batch_requests:
            waiting = self._first(waiting)
            tokens = int(waiting[TOKENS].sum())
        self.running = waiting
        cached = self._block_length * int(np.count_nonzero(waiting[CACHED]))
        cache_s = self._latency_s(CACHE, cached) if cached else 0.0
        recompute_s = self._latency_s(RECOMPUTE, tokens - cached) if tokens > cached else 0.0
        return float(cache_s + recompute_s)

    def finish(self) -> Batch:
        """End the iteration that runs."""
        assert self.running is not None, "no iteration is running"
        batch, self.running = self.running, None
        return batch

    def _first(self, waiting: Batch) -> Batch:
        """As many as fit, at least one; the others wait on."""
        fits = np.cumsum(waiting[TOKENS]) <= self.instance.max_batch_tokens
        count = max(1, min(int(fits.sum()), self.instance.max_batch_requests))
        if count < waiting.shape[1]:
            self._queue.append(waiting[:, count:])
        return waiting[:, :count]
