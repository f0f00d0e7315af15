"""What the scheduler says of itself, after cycles driven by hand."""

import numpy as np
import pytest

from services.scheduler.events import EstimatesFailed, EstimatesReceived, Event
from services.scheduler.monitoring.stats_window import StatsWindow
from shared.messages.stats import WINDOW_S, SchedulerStats
from tests.builders import arrival
from tests.support.scripted_cell import THRESHOLDS, ScriptedCell, make_cell

START_S = 100.0
CYCLE_S = 0.002


class Watched:
    """A cell whose cycles are noted."""

    def __init__(self, cell: ScriptedCell) -> None:
        self.cell = cell
        self.measures = StatsWindow(cell.core, "dilaserve", START_S)

    def serve(self, *events: Event) -> None:
        """These events, and every step that comes of them."""
        while True:
            commands = self.cell.send(*events)
            self.measures.note(events, commands, self.cell.now_s, CYCLE_S)
            events = tuple(self.cell.answers(commands))
            if not events:
                return

    def stats(self, now_s: float) -> SchedulerStats:
        return self.measures.stats(now_s)


def test_counts_rates_and_shares_are_of_what_happened() -> None:
    watched = Watched(make_cell({"a-1": 1}, per_step=4))
    watched.cell.now_s = START_S + 5.0
    watched.serve(arrival("met", slo_s=100.0), arrival("missed", slo_s=1.0))
    stats = watched.stats(START_S + 10.0)
    assert (stats.arrived, stats.completed, stats.failed, stats.active) == (2, 2, 0, 0)
    assert (stats.tokens, stats.steps) == (128, 32)
    assert (stats.rps, stats.tokens_per_s, stats.steps_per_s) == pytest.approx((0.2, 12.8, 3.2))
    assert stats.slo_attainment == 0.5
    assert stats.mean_threshold == pytest.approx(
        np.mean([s.stats.mean_threshold for s in watched.cell.finished if s.stats])
    )
    assert (stats.latency_p50_s, stats.latency_p99_s) == pytest.approx((5.0, 5.0))
    assert stats.cycle_mean_s == pytest.approx(CYCLE_S)


def test_what_the_window_has_left_behind_counts_only_in_the_totals() -> None:
    watched = Watched(make_cell({"a-1": 1}, per_step=4))
    watched.serve(arrival("r"))
    assert watched.stats(START_S + 1.0).rps == 1.0
    later = watched.stats(START_S + 2 * WINDOW_S)
    assert (later.completed, later.rps, later.tokens_per_s) == (1, 0.0, 0.0)
    assert (later.slo_attainment, later.mean_threshold, later.latency_p50_s) == (None, None, None)


def test_the_load_of_each_instance_and_of_the_cluster_is_told() -> None:
    watched = Watched(make_cell({"a-1": 1, "b-1": 1}))
    requests = [arrival(f"r{i}", slo_s=50.0) for i in range(3)]
    watched.measures.note(requests, watched.cell.send(*requests), START_S, CYCLE_S)
    stats = watched.stats(START_S + 1.0)
    assert (stats.active, stats.deferred, stats.steps_in_flight) == (3, 0, 3)
    assert [(i.instance_id, i.requests, i.tokens) for i in stats.instances] == [("a-1", 2, 256), ("b-1", 1, 128)]
    assert stats.instances[0].step_latency_s == pytest.approx(0.257)
    assert stats.load is not None
    assert 0 < stats.load.least_tokens <= stats.load.committed_tokens
    assert stats.load.capacity_tokens == pytest.approx(50.0 * stats.load.throughput_tokens_per_s)


def test_a_second_delivery_is_no_second_arrival() -> None:
    watched = Watched(make_cell({}))
    watched.serve(arrival("r"))
    watched.serve(arrival("r"))
    assert watched.stats(START_S + 1.0).arrived == 1


def test_predictions_and_fallbacks_are_counted() -> None:
    watched = Watched(make_cell({"a-1": 1}))
    watched.measures.note([], watched.cell.send(arrival("r")), START_S, CYCLE_S)
    ticket, step = watched.cell.core.table.ticket[[0]], watched.cell.core.table.steps[[0]]
    for event in (EstimatesReceived(ticket, step, np.full((1, len(THRESHOLDS)), 9.0)), EstimatesFailed(ticket)):
        watched.measures.note([event], watched.cell.send(event), START_S, CYCLE_S)
    stats = watched.stats(START_S + 1.0)
    assert (stats.predictions, stats.predictor_fallbacks) == (1, 1)
