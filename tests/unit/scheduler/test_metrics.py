"""The Prometheus metrics of requests that the core has served."""

import numpy as np
import pytest

from services.scheduler.events import EstimatesReceived
from services.scheduler.monitoring.metrics import SchedulerMetrics
from services.scheduler.monitoring.stats_metrics import NAME
from shared.messages.stats import ClusterLoad
from tests.builders import arrival, scheduler_stats
from tests.support.scripted_cell import THRESHOLDS, ScriptedCell, make_cell


def metrics_of(cell: ScriptedCell) -> SchedulerMetrics:
    metrics = SchedulerMetrics()
    for finish in cell.finished:
        metrics.observe_finished(finish)
    return metrics


def value(metrics: SchedulerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{NAME}_{name}", labels)


def test_steps_are_observed_by_kind_and_threshold() -> None:
    cell = make_cell({"a-1": 1}, caching=True)
    cell.serve(cell.send(arrival("r")))
    metrics = metrics_of(cell)
    assert value(metrics, "request_steps_sum") == 16
    assert value(metrics, "request_recompute_steps_sum") == 2
    assert value(metrics, "request_cache_steps_sum") == 14
    assert value(metrics, "threshold_steps_total", threshold="0.9") == 16
    assert value(metrics, "request_threshold_sum") == pytest.approx(0.9)
    assert value(metrics, "first_step_seconds_count") == 1


def test_slack_is_negative_for_a_late_request() -> None:
    cell = make_cell({"a-1": 1})
    commands = cell.send(arrival("late", slo_s=1.0), arrival("met", slo_s=9.0))
    cell.now_s += 5.0
    cell.serve(commands)
    metrics = metrics_of(cell)
    assert value(metrics, "slo_slack_seconds_bucket", le="0.0") == 1
    assert value(metrics, "slo_slack_seconds_count") == 2


def test_the_first_prediction_is_compared_with_the_actual_steps() -> None:
    cell = make_cell({"a-1": 1})
    commands = cell.send(arrival("r"))
    for left in (19.0, 1.0):  # only the first one counts
        row = cell.core.table.row_of["r"]
        ticket, step = cell.core.table.ticket[[row]], cell.core.table.steps[[row]]
        answer = EstimatesReceived(ticket, step, np.full((1, len(THRESHOLDS)), left))
        commands = cell.send(*cell.answers(commands), answer)
    cell.serve(commands)
    metrics = metrics_of(cell)
    assert value(metrics, "request_predicted_steps_sum") == 19
    assert value(metrics, "request_steps_sum") == 16
    assert value(metrics, "prediction_error_ratio_sum", output="whole") == pytest.approx(3 / 16)


def test_the_latest_statistics_are_exported_unchanged() -> None:
    metrics = SchedulerMetrics()
    assert value(metrics, "active_requests") is None  # the scheduler does not lead yet
    metrics.set_stats(scheduler_stats(slo_met=5, predictions=7, predictor_fallbacks=3, mean_threshold=None))
    assert value(metrics, "requests_total", outcome="completed") == 6
    assert value(metrics, "slo_met_total") == 5
    assert value(metrics, "estimates_total", source="fallback") == 3
    assert value(metrics, "instances", state="open") == 1
    assert value(metrics, "mean_threshold") is None
    load = ClusterLoad(least_tokens=100, committed_tokens=200, capacity_tokens=300, throughput_tokens_per_s=50)
    metrics.set_stats(scheduler_stats(load=load))
    assert value(metrics, "load_tokens", of="least") == 100
