"""The metrics and the trace of a plan."""

from msgspec.structs import replace
from opentelemetry import propagate
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.reconfigurator.metrics import NAME, ReconfiguratorMetrics
from services.reconfigurator.monitoring.plan_tracing import PlanTraces, spans_of
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanAction, PlanEvent, PlanRecord, PlanState
from tests.support.plans import plan
from tests.support.spans import recorded

NOW_S = 93.0
TWO = [InstanceSpec(node="a", gpus=(0,)), InstanceSpec(node="a", gpus=(1,))]
ONE = [InstanceSpec(node="a", gpus=(0, 1))]
DECIDED = replace(plan(PlanState.RUNNING), decided_s=50.0, mean_threshold=0.8, before=TWO, target=ONE)


def value(metrics: ReconfiguratorMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{NAME}_{name}", labels)


def test_a_plan_reports_its_time_prediction_and_end_state() -> None:
    metrics = ReconfiguratorMetrics()
    metrics.decided(DECIDED)
    assert value(metrics, "decided_timestamp_seconds") == 50.0
    assert value(metrics, "planned_mean_threshold") == 0.8
    assert (value(metrics, "instances", tp_degree="2"), value(metrics, "instances", tp_degree="1")) == (1, None)
    metrics.ended(replace(DECIDED, state=PlanState.DONE))
    assert value(metrics, "plans_total", state="done", status="optimal") == 1


def test_a_decision_to_stay_keeps_the_number_of_instances() -> None:
    metrics = ReconfiguratorMetrics()
    metrics.decided(replace(DECIDED, state=PlanState.STAYED))
    assert value(metrics, "instances", tp_degree="1") == 2


ACTIONS = (
    (PlanAction.DRAIN, "a-0_1"), (PlanAction.STOP, "a-0_1"), (PlanAction.START, "a-0"), (PlanAction.START, "a-1"),
    (PlanAction.SERVE, "a-1"), (PlanAction.SERVE, "a-0"), (None, "")
)  # fmt: skip
EVENTS = [
    PlanEvent(at_s=100.0 + at_s, text="start of anything serves", action=action, instance=instance)
    for at_s, (action, instance) in enumerate(ACTIONS)
]
RECORD = PlanRecord(
    plan_id="1", decided_s=90.0, state=PlanState.RUNNING, reason="", solve_s=2.0, stage1_s=1.0, stage2_s=0.5
)


def traced() -> tuple[PlanTraces, InMemorySpanExporter]:
    tracer, exporter = recorded()
    return PlanTraces(tracer), exporter


def test_each_action_lasts_until_the_next_event_and_serving_begins_at_the_start() -> None:
    assert spans_of(EVENTS) == [
        ("drain", "a-0_1", 100.0, 101.0),
        ("stop", "a-0_1", 101.0, 102.0),
        ("start", "a-0", 102.0, 103.0),
        ("start", "a-1", 103.0, 104.0),
        ("serve", "a-1", 103.0, 104.0),
        ("serve", "a-0", 102.0, 105.0),
    ]


def test_a_plan_is_one_trace_from_the_decision_to_its_end() -> None:
    traces, exporter = traced()
    record = traces.decided(RECORD, NOW_S)
    traces.ended(replace(record, state=PlanState.DONE, events=EVENTS, ended_s=106.0))
    spans = exporter.get_finished_spans()
    names = sorted(span.name for span in spans)
    assert names == sorted(["plan", "decide", "stage 1", "stage 2", "drain", "stop", *["start"] * 2, *["serve"] * 2])
    assert {f"{span.context.trace_id:032x}" for span in spans} == {record.traceparent.split("-")[1]}
    by_name = {span.name: span for span in spans}
    assert (by_name["plan"].start_time, by_name["plan"].end_time) == (90_000_000_000, 106_000_000_000)
    assert (by_name["stage 1"].end_time or 0) - (by_name["stage 1"].start_time or 0) == 1_000_000_000


def test_a_plan_that_another_reconfigurator_continues_stays_in_its_trace() -> None:
    record = traced()[0].decided(RECORD, NOW_S)
    later, exporter = traced()
    later.ended(replace(record, state=PlanState.DONE, events=EVENTS, ended_s=106.0))
    spans = exporter.get_finished_spans()
    assert len(spans) == 6
    assert {f"{span.context.trace_id:032x}" for span in spans} == {record.traceparent.split("-")[1]}


def test_a_plan_is_decided_where_contexts_are_not_passed_on() -> None:
    usual = propagate.get_global_textmap()
    propagate.set_global_textmap(CompositePropagator([]))  # as by OTEL_PROPAGATORS=none
    try:
        assert traced()[0].decided(RECORD, NOW_S) == RECORD
    finally:
        propagate.set_global_textmap(usual)


def test_without_a_collector_a_plan_has_no_trace() -> None:
    traces = PlanTraces()
    record = traces.decided(RECORD, NOW_S)
    traces.ended(record)
    assert record.traceparent == ""
