"""The metrics of plans."""

from msgspec.structs import replace

from services.reconfigurator.metrics import NAME, ReconfiguratorMetrics
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanRecord, PlanState

TWO = [InstanceSpec(node="a", gpus=(0,)), InstanceSpec(node="a", gpus=(1,))]
ONE = [InstanceSpec(node="a", gpus=(0, 1))]
RECORD = PlanRecord(
    plan_id="1",
    decided_s=50.0,
    state=PlanState.RUNNING,
    reason="",
    status="optimal",
    mean_threshold=0.8,
    solve_s=0.2,
    before=TWO,
    target=ONE,
)


def value(metrics: ReconfiguratorMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{NAME}_{name}", labels)


def test_a_plan_reports_its_time_prediction_and_end_state() -> None:
    metrics = ReconfiguratorMetrics()
    metrics.decided(RECORD)
    assert value(metrics, "decided_timestamp_seconds") == 50.0
    assert value(metrics, "planned_mean_threshold") == 0.8
    assert (value(metrics, "instances", tp_degree="2"), value(metrics, "instances", tp_degree="1")) == (1, None)
    metrics.ended(replace(RECORD, state=PlanState.DONE))
    assert value(metrics, "plans_total", state="done", status="optimal") == 1


def test_a_decision_to_stay_keeps_the_number_of_instances() -> None:
    metrics = ReconfiguratorMetrics()
    metrics.decided(replace(RECORD, state=PlanState.STAYED))
    assert value(metrics, "instances", tp_degree="1") == 2
