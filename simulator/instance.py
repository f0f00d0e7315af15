"""One instance: a queue of step jobs, and one batch of them after another.

As the worker does it: waiting jobs in their order, as many as the limits on tokens and requests allow; a cache step
feeds its block, a recompute step the whole sequence. An iteration takes as long as the profile says.
"""

from collections import deque
from dataclasses import dataclass
from functools import cache

import numpy as np

from shared.arrays import Int32, Int64, unpack_float32, unpack_int32, unpack_int64
from shared.messages.instances import Instance
from shared.messages.steps import StepJobs, StepKind
from shared.profile import LatencyProfile
from simulator.denoising import hundredths_of


@dataclass(frozen=True, slots=True)
class Batch:
    """Step jobs as columns, [n] each."""

    tickets: Int64
    requests: Int64  # index of the request
    steps: Int32
    blocks: Int32
    hundredths: Int64  # of the threshold
    kinds: Int32
    tokens: Int64  # fed by the step

    def __len__(self) -> int:
        return len(self.tickets)

    def part(self, part: slice) -> "Batch":
        return Batch(
            self.tickets[part],
            self.requests[part],
            self.steps[part],
            self.blocks[part],
            self.hundredths[part],
            self.kinds[part],
            self.tokens[part],
        )


class SimulatedInstance:
    """Holds which requests it was given; what is unmasked of them is not its business."""

    def __init__(self, instance: Instance, profile: LatencyProfile, block_length: int) -> None:
        self.instance = instance
        self.running: Batch | None = None
        self._held: dict[int, int] = {}  # ticket: request
        self._queue: deque[Batch] = deque()
        self._block_length = block_length
        self._latency_s = cache(lambda kind, tokens: profile.latency_s(instance.tp_degree, tokens, kind))

    def accept(self, jobs: StepJobs, lengths: Int64) -> None:
        """Take in a message. `lengths` [requests] is the whole length of each request, by its index."""
        for ticket in unpack_int64(jobs.drops).tolist():
            self._held.pop(ticket, None)
        for state in jobs.states:
            self._held[state.ticket] = int(state.request_id)
        if not jobs.tickets:
            return
        tickets, kinds = unpack_int64(jobs.tickets), unpack_int32(jobs.kinds)
        requests = np.array([self._held[ticket] for ticket in tickets.tolist()])
        self._queue.append(
            Batch(
                tickets,
                requests,
                unpack_int32(jobs.steps),
                unpack_int32(jobs.blocks),
                hundredths_of(unpack_float32(jobs.thresholds)),
                kinds,
                np.where(kinds == StepKind.CACHE, self._block_length, lengths[requests]),
            )
        )

    def start(self) -> float | None:
        """Begin the next iteration, if none is running and jobs wait. Returns: how long it takes, in seconds."""
        if self.running is not None or not self._queue:
            return None
        self.running = self._next_batch()
        cached = int((self.running.kinds == StepKind.CACHE).sum())
        recomputed = int(self.running.tokens.sum()) - cached * self._block_length
        cache_s = self._latency_s(StepKind.CACHE, cached * self._block_length) if cached else 0.0
        recompute_s = self._latency_s(StepKind.RECOMPUTE, recomputed) if recomputed else 0.0
        return float(cache_s + recompute_s)

    def finish(self) -> Batch:
        """End the iteration that runs."""
        assert self.running is not None, "no iteration is running"
        batch, self.running = self.running, None
        return batch

    def _next_batch(self) -> Batch:
        queue = self._queue
        waiting = queue.popleft() if len(queue) == 1 else _joined(queue)
        queue.clear()
        fits = np.cumsum(waiting.tokens) <= self.instance.max_batch_tokens
        count = max(1, min(int(fits.sum()), self.instance.max_batch_requests))
        if count < len(waiting):
            queue.append(waiting.part(slice(count, None)))
        return waiting.part(slice(count))


def _joined(batches: deque[Batch]) -> Batch:
    return Batch(*(np.concatenate([getattr(b, name) for b in batches]) for name in Batch.__slots__))
