"""The scheduler's statistics after some cycles, the slack that it publishes, and its metrics."""

from itertools import pairwise

import numpy as np
import pytest

from services.scheduler.events import EstimatesFailed, EstimatesReceived, Event, RequestArrived
from services.scheduler.monitoring.metrics import NAME, SchedulerMetrics
from services.scheduler.monitoring.stats_window import StatsWindow, cell_slack
from services.scheduler.registry import POLICIES
from shared.messages.stats import WINDOW_S, ClusterLoad, SchedulerStats
from tests import builders
from tests.builders import arrival, scheduler_stats
from tests.support.present import present
from tests.support.scripted_cell import THRESHOLDS, ScriptedCell, draining, make_cell

START_S = 100.0
CYCLE_S = 0.002


class ObservedCell:
    """A cell whose cycles are recorded."""

    def __init__(self, cell: ScriptedCell) -> None:
        self.cell = cell
        self.window = StatsWindow(cell.core, "dilaserve", START_S)

    def serve(self, *events: Event) -> None:
        """Send these events, counted as the consumer of requests counts them, and answer all steps that result."""
        self.cell.core.totals.arrived += sum(isinstance(event, RequestArrived) for event in events)
        while True:
            commands = self.cell.send(*events)
            self.window.record_cycle(commands, self.cell.now_s, CYCLE_S)
            events = tuple(self.cell.answers(commands))
            if not events:
                return

    def stats(self, now_s: float) -> SchedulerStats:
        return self.window.stats(now_s)


def test_totals_rates_and_shares_count_what_happened() -> None:
    observed = ObservedCell(make_cell({"a-1": 1}, per_step=4))
    observed.cell.now_s = START_S + 5.0
    observed.serve(arrival("met", slo_s=100.0), arrival("missed", slo_s=1.0))
    stats = observed.stats(START_S + 10.0)
    assert (stats.arrived, stats.completed, stats.failed, stats.active) == (2, 2, 0, 0)
    assert (stats.tokens, stats.steps) == (128, 32)
    assert (stats.rps, stats.tokens_per_s, stats.steps_per_s) == pytest.approx((0.2, 12.8, 3.2))
    assert stats.slo_attainment == 0.5
    assert stats.mean_threshold == pytest.approx(
        np.mean([s.stats.mean_threshold for s in observed.cell.finished if s.stats])
    )
    assert (stats.latency_p50_s, stats.latency_p99_s) == pytest.approx((5.0, 5.0))
    assert stats.cycle_mean_s == pytest.approx(CYCLE_S)


def test_requests_before_the_window_count_in_totals_alone() -> None:
    observed = ObservedCell(make_cell({"a-1": 1}, per_step=4))
    assert observed.stats(START_S).last is None
    observed.serve(arrival("r", slo_s=100.0))
    recent, later = observed.stats(START_S + 1.0), observed.stats(START_S + 2 * WINDOW_S)
    assert recent.rps == 1.0
    assert (later.completed, later.rps, later.tokens_per_s) == (1, 0.0, 0.0)
    assert (later.slo_attainment, later.mean_threshold, later.latency_p50_s) == (None, None, None)
    assert recent.last == later.last
    last = present(later.last)
    assert (last.at_s, last.slo_attainment, last.latency_p50_s) == (START_S + 1.0, 1.0, recent.latency_p50_s)


def test_statistics_contain_the_load_of_each_instance_and_of_the_cluster() -> None:
    observed = ObservedCell(make_cell({"a-1": 1, "b-1": 1}))
    requests = [arrival(f"r{i}", slo_s=50.0) for i in range(3)]
    observed.window.record_cycle(observed.cell.send(*requests), START_S, CYCLE_S)
    stats = observed.stats(START_S + 1.0)
    assert (stats.active, stats.deferred, stats.steps_in_flight) == (3, 0, 3)
    assert [(i.instance_id, i.requests, i.tokens) for i in stats.instances] == [("a-1", 2, 256), ("b-1", 1, 128)]
    assert stats.instances[0].step_latency_s == pytest.approx(0.257)
    load = present(stats.load)
    assert 0 < load.least_tokens <= load.committed_tokens
    assert load.capacity_tokens == pytest.approx(50.0 * load.throughput_tokens_per_s)


def test_predictions_and_fallbacks_are_counted() -> None:
    observed = ObservedCell(make_cell({"a-1": 1}))
    observed.window.record_cycle(observed.cell.send(arrival("r")), START_S, CYCLE_S)
    ticket, step = observed.cell.core.table.ticket[[0]], observed.cell.core.table.steps[[0]]
    for event in (EstimatesReceived(ticket, step, np.full((1, len(THRESHOLDS)), 9.0)), EstimatesFailed(ticket)):
        observed.window.record_cycle(observed.cell.send(event), START_S, CYCLE_S)
    stats = observed.stats(START_S + 1.0)
    assert (stats.predictions, stats.predictor_fallbacks) == (1, 1)


def test_the_oldest_late_request_without_an_instance_is_reported() -> None:
    observed = ObservedCell(make_cell({}, per_step=4))
    observed.cell.now_s = START_S
    observed.cell.send(arrival("early", slo_s=30.0), arrival("patient", slo_s=1000.0))
    assert observed.stats(START_S + 20.0).oldest_queued_s == 0.0
    assert observed.stats(START_S + 40.0).oldest_queued_s == pytest.approx(40.0, abs=5.0)


def test_the_age_of_requests_beyond_the_core_counts_too() -> None:
    cell = make_cell({}, per_step=4)
    window = StatsWindow(cell.core, "dilaserve", START_S, lambda: 1, lambda now_s: now_s - START_S)
    assert window.stats(START_S + 7.0).oldest_queued_s == 7.0


def test_a_stall_is_the_time_without_a_step_while_requests_are_on_an_instance() -> None:
    observed = ObservedCell(make_cell({"a-1": 1}, per_step=4))
    assert observed.stats(START_S + 50.0).stalled_s == 0.0  # no request is active
    commands = observed.cell.send(arrival("r"))
    assert observed.stats(START_S + 57.0).stalled_s == pytest.approx(7.0)
    observed.cell.send(*observed.cell.answers(commands))
    assert observed.stats(START_S + 58.0).stalled_s == 0.0
    waiting = ObservedCell(make_cell({}))
    waiting.cell.send(arrival("r"))
    assert [waiting.stats(START_S + later_s).stalled_s for later_s in (0.0, 60.0)] == [0.0, 0.0]


@pytest.mark.parametrize("policy", POLICIES)
def test_slack_falls_with_each_request_and_rises_with_each_instance(policy: str) -> None:
    few, many = (make_cell({f"{i}-1": 1 for i in range(n)}, policy=policy) for n in (1, 4))
    assert cell_slack(few.core, 0) == cell_slack(many.core, 0) == 1.0
    slacks = list[float]()
    for i in range(4):
        few.send(arrival(f"r{i}", slo_s=1000.0))
        many.send(arrival(f"r{i}", slo_s=1000.0))
        assert cell_slack(few.core, 0) < cell_slack(many.core, 0) < 1.0
        slacks.append(cell_slack(few.core, 0))
    assert all(later < earlier for earlier, later in pairwise(slacks))


def test_a_cell_with_more_work_than_fits_the_slos_has_none() -> None:
    cell = make_cell({"a-1": 1}, policy="dilaserve")
    cell.send(*[arrival(f"r{i}", slo_s=165.0) for i in range(80)])
    assert cell_slack(cell.core, 0) < 0


def test_requests_outside_the_core_take_places_which_only_open_instances_have() -> None:
    cell = make_cell({"a-1": 1})
    [places] = cell.core.fleet.max_requests[cell.core.fleet.open].tolist()
    assert cell_slack(cell.core, places // 2) == 0.5
    assert cell_slack(cell.core, 2 * places) == -1.0
    cell.send(draining("a-1"))
    assert cell_slack(cell.core, 0) == 0.0


def test_instances_without_a_profile_count_by_their_places() -> None:
    cell = make_cell({}, policy="fixed")
    cell.send(*[builders.registered(f"{i}-1") for i in range(16)])
    cell.send(arrival("r"))
    assert 0.99 < cell_slack(cell.core, 0) < 1.0


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
    metrics.last = scheduler_stats(slo_met=5, predictions=7, predictor_fallbacks=3, mean_threshold=None)
    assert value(metrics, "requests_total", outcome="completed") == 6
    assert value(metrics, "slo_met_total") == 5
    assert value(metrics, "estimates_total", source="fallback") == 3
    assert value(metrics, "instances", state="open") == 1
    assert value(metrics, "mean_threshold") is None
    load = ClusterLoad(least_tokens=100, committed_tokens=200, capacity_tokens=300, throughput_tokens_per_s=50)
    metrics.last = scheduler_stats(load=load)
    assert value(metrics, "load_tokens", of="least") == 100
