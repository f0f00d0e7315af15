"""The scheduler's spans of a request: below the client's, and above the workers'."""

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.scheduler.events import FinishRequest, RequestArrived
from services.scheduler.monitoring import tracing
from shared.arrays import pack_float32, pack_int32, pack_int64
from shared.messages.requests import OutcomeStatus
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults
from tests.builders import arrival
from tests.support.present import present
from tests.support.spans import recorded_in

CLIENT = "b7ad6b7169203331"
TRACE = {"traceparent": f"00-0af7651916cd43dd8448eb211c80319c-{CLIENT}-01"}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return recorded_in(tracing, monkeypatch)


def jobs(ticket: int, step: int, *, is_new: bool = False) -> StepJobs:
    state = RequestState(ticket=ticket, request_id="r", prompt_length=1, block_length=1, canvas=b"", trace=TRACE)
    return StepJobs(
        epoch=1,
        tickets=pack_int64([ticket]),
        steps=pack_int32([step]),
        thresholds=pack_float32([0.75]),
        kinds=pack_int32([StepKind.CACHE]),
        states=[state] if is_new else [],
    )


def result(ticket: int, step: int) -> StepResults:
    steps, counts = pack_int32([step]), pack_int32([2])
    return StepResults(instance_id="a-1", epoch=1, tickets=pack_int64([ticket]), steps=steps, counts=counts)


def finish(arrived: RequestArrived) -> FinishRequest:
    return FinishRequest(arrived, OutcomeStatus.COMPLETED, pack_int32([]), None, None)  # type: ignore[arg-type]


def span_id(span: ReadableSpan) -> str:
    return f"{present(span.context).span_id:016x}"


def parent_id(span: ReadableSpan) -> str:
    return f"{present(span.parent).span_id:016x}"


def test_each_instance_continues_the_trace_below_the_scheduler(ended: InMemorySpanExporter) -> None:
    spans, arrived = tracing.ScheduleSpans(), replace(arrival("r"), trace=TRACE)
    spans.arrived(arrived)
    first = spans.sent("a-1", jobs(1, 0, is_new=True))
    spans.received(result(1, 0))
    spans.sent("a-1", jobs(1, 1))
    second = spans.sent("b-1", jobs(2, 1, is_new=True))  # the request moves
    spans.received(result(1, 1))  # late, from the instance that it left
    spans.received(result(2, 1))
    spans.finished(finish(arrived))
    on_a, on_b, schedule = ended.get_finished_spans()
    assert (schedule.name, parent_id(schedule)) == ("schedule", CLIENT)
    assert [(span.name, parent_id(span)) for span in (on_a, on_b)] == [("run", span_id(schedule))] * 2
    for sent, span in ((first, on_a), (second, on_b)):
        assert sent.states[0].trace["traceparent"].split("-")[1:3] == [TRACE["traceparent"][3:35], span_id(span)]
    events = [
        [(event.name, (event.attributes or {})["dilaserve.step"]) for event in span.events] for span in (on_a, on_b)
    ]
    assert events == [[("step", 0), ("result", 0), ("step", 1)], [("step", 1), ("result", 1)]]


@pytest.mark.parametrize("column", ["tickets", "steps", "counts"])
def test_malformed_results_end_neither_the_scheduler_nor_the_trace(ended: InMemorySpanExporter, column: str) -> None:
    spans, arrived = tracing.ScheduleSpans(), replace(arrival("r"), trace=TRACE)
    spans.arrived(arrived)
    spans.sent("a-1", jobs(1, 0, is_new=True))
    spans.received(replace(result(1, 0), **{column: b"odd"}))
    spans.finished(finish(arrived))
    assert [span.name for span in ended.get_finished_spans()] == ["run", "schedule"]


def test_a_request_without_a_trace_and_one_without_a_collector_are_sent_as_they_are() -> None:
    spans = tracing.ScheduleSpans()
    for arrived in (arrival("r"), replace(arrival("r"), trace=TRACE)):
        spans.arrived(arrived)
        sent = jobs(1, 0, is_new=True)
        assert spans.sent("a-1", sent) is sent
        spans.received(result(1, 0))
        spans.finished(finish(arrived))
