"""The scheduler's spans of a traced request: `schedule` from its arrival to its end, and below it `run` on each of its
instances, with an event for each step sent and each result received. The worker's span is below `run`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace
from opentelemetry import propagate, trace

from services.scheduler.events import FinishRequest, RequestArrived
from shared.arrays import unpack_float32, unpack_int32, unpack_int64
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults
from shared.telemetry import MAX_STEP_EVENTS, as_ns

tracer = trace.get_tracer(__name__)

STATS = ("steps", "recompute_steps", "mean_threshold", "migrations", "slo_met")  # attributes of the span


@dataclass(slots=True)
class _Traced:
    schedule: trace.Span
    ticket: int = -1  # of the span `run`


class ScheduleSpans:
    """The spans of all traced requests; none without a collector."""

    def __init__(self) -> None:
        self._requests: dict[str, _Traced] = {}
        self._running: dict[int, trace.Span] = {}  # the spans `run`, by ticket

    def arrived(self, arrived: RequestArrived) -> None:
        """Start the span `schedule`, if the request has a trace."""
        if not arrived.trace or arrived.request.request_id in self._requests:
            return
        context, start = propagate.extract(arrived.trace), as_ns(arrived.arrival_s)
        span = tracer.start_span("schedule", context=context, start_time=start)
        if span.is_recording():
            self._requests[arrived.request.request_id] = _Traced(span)

    def sent(self, instance_id: str, jobs: StepJobs) -> StepJobs:
        """Record the steps sent to an instance. Returns: the jobs, whose new states continue the trace from `run`."""
        if not self._requests:
            return jobs
        jobs = replace(jobs, states=[self._run_on(instance_id, state) for state in jobs.states])
        columns = (unpack_int64(jobs.tickets), unpack_int32(jobs.steps), unpack_float32(jobs.thresholds))
        kinds = unpack_int32(jobs.kinds)
        for ticket, step, threshold, kind in zip(*(each.tolist() for each in (*columns, kinds)), strict=True):
            if ticket in self._running:
                name = StepKind(kind).name.lower()
                self._note("step", ticket, step, {"dilaserve.threshold": round(threshold, 4), "dilaserve.kind": name})
        return jobs

    def received(self, results: StepResults) -> None:
        """Record the results of steps."""
        if not self._running:
            return
        with suppress(ValueError):  # malformed results, which the core refuses
            columns = (unpack_int64(results.tickets), unpack_int32(results.steps), unpack_int32(results.counts))
            for ticket, step, count in zip(*(each.tolist() for each in columns), strict=True):
                if ticket in self._running:
                    self._note("result", ticket, step, {"dilaserve.unmasked": count})

    def _run_on(self, instance_id: str, state: RequestState) -> RequestState:
        """End the span `run` on another instance, and start that on this one. Returns: the state in this trace."""
        traced = self._requests.get(state.request_id)
        if traced is None:
            return state
        self._end_run(traced)
        attributes = {"dilaserve.request_id": state.request_id, "dilaserve.instance": instance_id}
        run = tracer.start_span("run", trace.set_span_in_context(traced.schedule), attributes=attributes)
        traced.ticket = state.ticket
        self._running[state.ticket] = run
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(run))
        return replace(state, trace=carrier)

    def _note(self, name: str, ticket: int, step: int, attributes: Mapping[str, str | float]) -> None:
        if step < MAX_STEP_EVENTS:
            self._running[ticket].add_event(name, {"dilaserve.step": step, **attributes})

    def _end_run(self, traced: _Traced) -> None:
        if (run := self._running.pop(traced.ticket, None)) is not None:
            run.end()

    def finished(self, finish: FinishRequest) -> None:
        """End the spans of a request."""
        traced = self._requests.pop(finish.arrived.request.request_id, None)
        if traced is None:
            return
        self._end_run(traced)
        span, stats = traced.schedule, finish.stats
        span.set_attribute("dilaserve.request_id", finish.arrived.request.request_id)
        span.set_attribute("dilaserve.status", finish.status.value)
        span.set_attribute("dilaserve.slo_s", finish.arrived.slo_s)
        for name in STATS if stats is not None else ():
            span.set_attribute(f"dilaserve.{name}", getattr(stats, name))
        span.end()
