"""One instance: a queue of step jobs, and one batch of them after another.

As the worker does it: waiting jobs in their order, as many as the limits on tokens and requests allow; a cache step
feeds its block, a recompute step the whole sequence. An iteration takes as long as the profile says.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from shared.arrays import Bool, Int32, Int64, unpack_float32, unpack_int32, unpack_int64
from shared.messages.instances import Instance
from shared.messages.steps import StepJobs, StepKind
from shared.profile import LatencyProfile
from simulator.denoising import hundredths_of

RECOMPUTE, CACHE = int(StepKind.RECOMPUTE), int(StepKind.CACHE)  # members are slow to look up


@dataclass(frozen=True, slots=True)
class Batch:
    """Step jobs as columns, [n] each."""

    tickets: Int64
    requests: Int64  # index of the request
    steps: Int32
    hundredths: Int64  # of the threshold
    cached: Bool  # whether it is a cache step
    tokens: Int64  # fed by the step

    def __len__(self) -> int:
        return len(self.tickets)

    def part(self, part: slice) -> "Batch":
        return Batch(*(getattr(self, column.name)[part] for column in fields(Batch)))


def joined(batches: Sequence[Batch]) -> Batch:
    """One after the other."""
    if len(batches) == 1:
        return batches[0]
    return Batch(*(np.concatenate([getattr(batch, column.name) for batch in batches]) for column in fields(Batch)))


def read_jobs(jobs: StepJobs, requests: Int64, lengths: Int64, block_length: int) -> Batch:
    """A message's jobs. `requests` [n] are their requests, `lengths` [n] the whole lengths of these in tokens."""
    cached = unpack_int32(jobs.kinds) == CACHE
    return Batch(
        unpack_int64(jobs.tickets),
        requests,
        unpack_int32(jobs.steps),
        hundredths_of(unpack_float32(jobs.thresholds)),
        cached,
        np.where(cached, block_length, lengths),
    )


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
        tokens = int(waiting.tokens.sum())
        if tokens > self.instance.max_batch_tokens or len(waiting) > self.instance.max_batch_requests:
            waiting = self._first(waiting)
            tokens = int(waiting.tokens.sum())
        self.running = waiting
        cached = self._block_length * int(np.count_nonzero(waiting.cached))
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
        fits = np.cumsum(waiting.tokens) <= self.instance.max_batch_tokens
        count = max(1, min(int(fits.sum()), self.instance.max_batch_requests))
        if count < len(waiting):
            self._queue.append(waiting.part(slice(count, None)))
        return waiting.part(slice(count))
