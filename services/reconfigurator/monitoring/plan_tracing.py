"""One trace per decision: its stages, then each action until the cluster has changed."""

from collections.abc import Sequence

from msgspec.structs import replace
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, Tracer

from shared.messages.plans import PlanAction, PlanEvent, PlanRecord
from shared.telemetry import as_ns

CONTEXT = "traceparent"  # W3C header


class PlanTraces:
    """Records the span `plan` from the decision to its end, and below it `decide`, `stage 1`, `stage 2`, and `drain`,
    `stop`, `start` and `serve` of each instance.

    A plan that another reconfigurator continues stays in its trace, without the span `plan`.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer(__name__)
        self._open: dict[str, Span] = {}  # spans `plan`, by plan id

    def decided(self, record: PlanRecord, now_s: float) -> PlanRecord:
        """Record a decision that ends at `now_s`, by the bus's clock. Returns: the record with its trace's context."""
        span = self._tracer.start_span("plan", start_time=as_ns(record.decided_s))
        if not span.is_recording():
            return record
        span.set_attributes({"dilaserve.plan_id": record.plan_id, "dilaserve.reason": record.reason})
        self._open[record.plan_id] = span
        carrier: dict[str, str] = {}
        context = trace.set_span_in_context(span)
        propagate.inject(carrier, context)
        end_s = max(now_s, record.decided_s)
        decide = self._tracer.start_span("decide", context, start_time=as_ns(record.decided_s))
        if record.solve_s is not None:
            at_s = max(record.decided_s, end_s - record.solve_s)
            for name, stage_s in (("stage 1", record.stage1_s), ("stage 2", record.stage2_s)):
                stage = self._tracer.start_span(name, trace.set_span_in_context(decide), start_time=as_ns(at_s))
                at_s += stage_s or 0.0
                stage.end(as_ns(at_s))
        decide.end(as_ns(end_s))
        return replace(record, traceparent=carrier.get(CONTEXT, ""))  # OTEL_PROPAGATORS may name another form

    def ended(self, record: PlanRecord) -> None:
        """Record the actions of a decision that changes nothing more."""
        if not record.traceparent:
            return
        context = propagate.extract({CONTEXT: record.traceparent})
        for name, instance, start_s, end_s in spans_of(record.events):
            span = self._tracer.start_span(name, context, start_time=as_ns(start_s))
            span.set_attribute("dilaserve.instance", instance)
            span.end(as_ns(end_s))
        if (plan := self._open.pop(record.plan_id, None)) is not None:
            plan.set_attribute("dilaserve.state", record.state.value)
            plan.end(None if record.ended_s is None else as_ns(record.ended_s))


def spans_of(events: Sequence[PlanEvent]) -> list[tuple[str, str, float, float]]:
    """Name, instance, start and end of each action. An instance is drained, stopped and started until the next event;
    `serve` lasts from its start until it serves. Units: Unix time, seconds."""
    found = []
    started: dict[str, float] = {}  # by instance
    for event, following in zip(events, (*events[1:], *events[-1:]), strict=True):
        if event.action is None:
            continue
        start_s, end_s = event.at_s, following.at_s
        if event.action is PlanAction.START:
            started[event.instance] = start_s
        elif event.action is PlanAction.SERVE:
            start_s, end_s = started.get(event.instance, event.at_s), event.at_s
        found.append((event.action.value, event.instance, start_s, end_s))
    return found
