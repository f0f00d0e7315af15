"""The spans of the requests that an instance holds."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.worker.monitoring import tracing
from shared.arrays import pack_int32, pack_int64
from shared.messages.steps import RequestState, StepJobs, StepResults
from tests.support.spans import recorded_in

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return recorded_in(tracing, monkeypatch)


def jobs(*tickets: int, epoch: int = 1, name: str = "r", **options: object) -> StepJobs:
    states = [
        RequestState(ticket=t, request_id=f"{name}{t}", prompt_length=1, block_length=1, canvas=b"", trace=TRACE)
        for t in tickets
    ]
    return StepJobs(epoch=epoch, states=states, **options)  # type: ignore[arg-type]


def ended_spans(exporter: InMemorySpanExporter) -> list[tuple[object, object]]:
    """The request id and the number of steps of each ended span."""
    names = ("dilaserve.request_id", "dilaserve.steps")
    attributes = [span.attributes or {} for span in exporter.get_finished_spans()]
    return [(of_span[names[0]], of_span[names[1]]) for of_span in attributes]


def step_of(ticket: int) -> StepResults:
    one = pack_int32([1])
    return StepResults(instance_id="a-1", epoch=1, tickets=pack_int64([ticket]), steps=one, counts=one)


def test_a_span_ends_when_its_request_is_dropped(ended: InMemorySpanExporter) -> None:
    spans = tracing.DenoiseSpans("a-1")
    spans.jobs_received(jobs(1, 2, 3))
    spans.iteration_finished(step_of(1))
    spans.jobs_received(jobs(drops=pack_int64([1])))
    assert ended_spans(ended) == [("r1", 1)]
    spans.jobs_received(jobs(3, forget_below=9))
    assert ended_spans(ended) == [("r1", 1), ("r2", 0)]


def test_the_same_ticket_in_a_new_epoch_has_its_own_span(ended: InMemorySpanExporter) -> None:
    spans = tracing.DenoiseSpans("a-1")
    spans.jobs_received(jobs(1))
    spans.jobs_received(jobs(1, epoch=2, name="s"))
    spans.iteration_finished(step_of(1))
    spans.close()
    assert ended_spans(ended) == [("r1", 0), ("s1", 1)]
