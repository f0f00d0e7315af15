"""The scheduler's span of a request, written when the request ends."""

from opentelemetry import propagate, trace

from services.scheduler.events import FinishRequest
from shared.arrays import unpack_float32, unpack_int32
from shared.messages.decisions import StepDecisions
from shared.messages.steps import StepKind
from shared.telemetry import MAX_STEP_EVENTS, as_ns

tracer = trace.get_tracer(__name__)

STATS = ("steps", "recompute_steps", "mean_threshold", "migrations", "slo_met")  # attributes of the span


def record_request(finish: FinishRequest) -> None:
    """Write a span from arrival to end, with an event for each step."""
    arrived, stats = finish.arrived, finish.stats
    span = tracer.start_span("schedule", context=propagate.extract(arrived.trace), start_time=as_ns(arrived.arrival_s))
    if span.is_recording():
        span.set_attribute("dilaserve.request_id", arrived.request.request_id)
        span.set_attribute("dilaserve.status", finish.status.value)
        span.set_attribute("dilaserve.slo_s", arrived.slo_s)
        if stats is not None:
            for name in STATS:
                span.set_attribute(f"dilaserve.{name}", getattr(stats, name))
        if finish.decisions is not None:
            _add_steps(span, finish.decisions, arrived.arrival_s)
    span.end()


def _add_steps(span: trace.Span, decisions: StepDecisions, arrival_s: float) -> None:
    at_s, thresholds = unpack_float32(decisions.at_s).tolist(), unpack_float32(decisions.thresholds).tolist()
    kinds, placed_on = unpack_int32(decisions.kinds).tolist(), unpack_int32(decisions.placed_on).tolist()
    for i in range(min(len(at_s), MAX_STEP_EVENTS)):
        attributes = {
            "dilaserve.step": decisions.first_step + i,
            "dilaserve.threshold": round(thresholds[i], 4),
            "dilaserve.kind": StepKind(kinds[i]).name.lower(),
            "dilaserve.instance": decisions.instances[placed_on[i]],
        }
        span.add_event("step", attributes, timestamp=as_ns(arrival_s + at_s[i]))
