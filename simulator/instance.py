"""One instance: a queue of step jobs, run in one batch after another.

It forms batches as the worker does: waiting jobs in order, up to the limits on tokens and requests. A cache step
computes its block, a recompute step the whole sequence. An iteration's latency is the profile's.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise

import numpy as np

from services.scheduler.state.request_table import ROW_MASK
from shared.arrays import Int64, unpack_float32, unpack_int32, unpack_int64
from shared.messages.instances import Instance
from shared.messages.steps import CACHE, StepJobs, StepKind
from shared.profile import LatencyProfile
from simulator.unmasking_model import hundredths_of

# Step jobs as columns, so that batches are joined and split at once. Shape: [6, n].
Batch = Int64
TICKETS, REQUESTS, STEPS, HUNDREDTHS, CACHED, TOKENS = range(6)  # threshold in hundredths; cached: 0 or 1


def iteration_s(
    latency_s: Callable[[StepKind, int], float], cached: int, recomputed: int, shared_launch_s: float
) -> float:
    """The latency of an iteration that computes `cached` and `recomputed` tokens in steps of each kind: with both,
    `shared_launch_s` less than the sum of two lookups. Units: seconds; tokens."""
    if not recomputed:
        return latency_s(StepKind.CACHE, cached)
    recompute_s = latency_s(StepKind.RECOMPUTE, recomputed)
    return recompute_s + latency_s(StepKind.CACHE, cached) - shared_launch_s if cached else recompute_s


def joined(batches: Sequence[Batch]) -> Batch:
    return batches[0] if len(batches) == 1 else np.concatenate(batches, axis=1)


def read_jobs(messages: Sequence[StepJobs], request_at: Int64, lengths: Int64, block_length: int) -> list[Batch]:
    """The jobs of each message. `request_at` maps rows of the scheduler's table to requests, `lengths` are the tokens
    of each request's prompt and output."""
    tickets = unpack_int64(b"".join([message.tickets for message in messages]))
    batch = np.empty((6, len(tickets)), dtype=np.int64)
    batch[TICKETS] = tickets
    batch[REQUESTS] = requests = request_at[tickets & ROW_MASK]
    batch[STEPS] = unpack_int32(b"".join([message.steps for message in messages]))
    batch[HUNDREDTHS] = hundredths_of(unpack_float32(b"".join([message.thresholds for message in messages])))
    batch[CACHED] = cached = unpack_int32(b"".join([message.kinds for message in messages])) == CACHE
    batch[TOKENS] = np.where(cached, block_length, lengths[requests])
    ends = list(accumulate(len(message.tickets) // 8 for message in messages))
    return [batch[:, start:end] for start, end in pairwise([0, *ends])]


class SimulatedInstance:
    """Times iterations; SimulatedOutputs has their results."""

    def __init__(
        self, instance: Instance, profile: LatencyProfile, block_length: int, shared_launch_s: float = 0.0
    ) -> None:
        self.instance = instance
        self.running: Batch | None = None
        self._queue: deque[Batch] = deque()
        self._block_length = block_length
        self._shared_launch_s = shared_launch_s
        self._latency_s = cache(lambda kind, tokens: float(profile.latency_s(instance.tp_degree, tokens, kind)))

    def accept(self, batch: Batch) -> None:
        """Queue jobs."""
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
        cached = self._block_length * sum(waiting[CACHED].tolist())
        return iteration_s(self._latency_s, cached, tokens - cached, self._shared_launch_s)

    def finish(self) -> Batch:
        """End the running iteration."""
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
