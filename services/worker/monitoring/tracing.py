"""The worker's spans: one per resident request, with an event for each step that ran."""

from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry import propagate, trace

from services.worker.engine.kv_reservations import tickets_to_evict
from shared.arrays import unpack_int32, unpack_int64
from shared.messages.steps import StepJobs, StepResults
from shared.telemetry import MAX_STEP_EVENTS

tracer = trace.get_tracer(__name__)


@dataclass(slots=True)
class _RequestSpan:
    span: trace.Span
    steps: int = 0
    tokens: int = 0  # unmasked
    computing_s: float = 0.0


class DenoiseSpans:
    """The spans of one instance's traced requests; none without a collector."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._epoch = -1
        self._resident: dict[int, _RequestSpan] = {}  # by ticket

    def jobs_received(self, jobs: StepJobs) -> None:
        """End the spans of dropped requests, and start those of new ones."""
        if jobs.epoch > self._epoch:  # tickets are unique within an epoch only
            self._epoch = jobs.epoch
            self.close()
        self._end(tickets_to_evict(jobs, self._resident) if self._resident else ())
        for state in jobs.states:
            if not state.trace or state.ticket in self._resident:
                continue
            attributes = {"dilaserve.request_id": state.request_id, "dilaserve.instance": self._instance_id}
            span = tracer.start_span("denoise", context=propagate.extract(state.trace), attributes=attributes)
            if span.is_recording():
                self._resident[state.ticket] = _RequestSpan(span)

    def iteration_finished(self, results: StepResults) -> None:
        """Add the steps of one iteration to their spans."""
        if not self._resident:
            return
        columns = (unpack_int64(results.tickets), unpack_int32(results.steps), unpack_int32(results.counts))
        for ticket, step, count in zip(*(column.tolist() for column in columns), strict=True):
            resident = self._resident.get(ticket)
            if resident is None:
                continue
            resident.steps += 1
            resident.tokens += count
            resident.computing_s += results.latency_s
            if resident.steps <= MAX_STEP_EVENTS:
                attributes = {
                    "dilaserve.step": step,
                    "dilaserve.unmasked": count,
                    "dilaserve.batch_tokens": results.batch_tokens,
                    "dilaserve.iteration_s": results.latency_s,
                }
                resident.span.add_event("step", attributes)

    def close(self) -> None:
        """End all spans."""
        self._end(list(self._resident))

    def _end(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            resident = self._resident.pop(ticket, None)
            if resident is not None:
                resident.span.set_attribute("dilaserve.steps", resident.steps)
                resident.span.set_attribute("dilaserve.unmasked", resident.tokens)
                resident.span.set_attribute("dilaserve.computing_s", resident.computing_s)
                resident.span.end()
