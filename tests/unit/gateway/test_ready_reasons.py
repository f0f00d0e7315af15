"""Why a cell is not ready, and the metrics."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from services.gateway.metrics import GatewayMetrics, RequestRecorder
from services.gateway.ready_reasons import CellState, Storage, reasons
from shared.arrays import pack_float32
from shared.bus.watch import StreamContent, StreamLimits, StreamState
from shared.messages.decisions import StepDecisions
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus, Request
from shared.messages.stats import InstanceLoad
from tests.builders import scheduler_stats, serving_stats

GIB = 2**30


def stream(messages: int, size: int, **limits: int) -> StreamState:
    return StreamState(StreamContent(messages, messages, size), config=StreamLimits(**limits))


FULL = stream(10, 9 * GIB, max_bytes=10 * GIB)
HALF = stream(89, 5 * GIB, max_msgs=100, max_bytes=10 * GIB)


def serving(**changes: Any) -> CellState:
    """A cell that serves, but for `changes`."""
    state: dict[str, Any] = {"stats": scheduler_stats(), "ready_instances": 1, "leaders": 1}
    return CellState(**state | {"max_queue_s": 300.0} | changes)


def texts(state: CellState) -> list[str]:
    return [reason.text for reason in reasons(state)]


def instance(step_latency_s: float) -> InstanceLoad:
    [load] = scheduler_stats().instances
    return replace(load, step_latency_s=step_latency_s)


def test_a_cell_that_serves_has_no_reason() -> None:
    assert texts(serving()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"draining": True}, "the gateway is shutting down"),
        ({"connected": False}, "the bus is not connected"),
        ({"storage": Storage()}, "the bus stores no message: it has not been checked yet"),
        ({"storage": Storage(problem=None, free_bytes=100 << 20)}, "the disk of the bus has 100.0 MiB left"),
        (
            {"storage": Storage(problem=None, streams={"OUTCOMES": FULL})},
            "the bus stores 9.0 GiB of outcomes, of at most 10.0 GiB",
        ),
        (
            {"storage": Storage(problem=None, streams={"REQUESTS": stream(900, 0, max_msgs=1000)})},
            "the bus stores 900 unfinished requests, of at most 1,000",
        ),
        ({"stats": None}, "no scheduler leads"),
        ({"leaders": 4}, "the scheduler has started 4 times in the last 60 s"),
        ({"ready_instances": 0}, "no instance is ready"),
        (
            {"stats": scheduler_stats(instances=[])},
            "the scheduler has refused every ready instance; its log has the reasons",
        ),
        ({"stats": scheduler_stats(stalled_s=6.0)}, "no step has ended for 6 s, with 4 requests active"),
        ({"stats": scheduler_stats(oldest_queued_s=301.0)}, "a request has waited 301 s for an instance"),
        ({"unreceived_s": 11.0}, "the bus has had requests for 11 s that the scheduler does not have"),
    ],
)
def test_each_condition_gives_one_line(changes: dict[str, Any], expected: str) -> None:
    assert texts(serving(**changes)) == [expected]


def test_full_files_and_values_within_their_limits_are_no_reason() -> None:
    unlimited = stream(10, 9 * GIB, max_msgs=-1, max_bytes=-1)
    streams = {"files": FULL, "claims": FULL, "REQUESTS": HALF, "OUTCOMES": unlimited}
    storage = Storage(problem=None, streams=streams, free_bytes=GIB)
    stats = scheduler_stats(stalled_s=4.9, oldest_queued_s=299.0)
    assert texts(serving(storage=storage, stats=stats, unreceived_s=9.0, leaders=3)) == []


def test_the_time_without_a_step_is_measured_by_the_slowest_instance() -> None:
    loads = [instance(0.01), instance(1.0)]
    assert texts(serving(stats=scheduler_stats(stalled_s=19.0, instances=loads))) == []
    assert texts(serving(stats=scheduler_stats(stalled_s=21.0, instances=loads))) != []


def test_without_an_instance_the_numbers_of_the_scheduler_do_not_count() -> None:
    stalled = scheduler_stats(stalled_s=100.0, oldest_queued_s=1000.0)
    assert texts(serving(stats=stalled, ready_instances=0)) == ["no instance is ready"]


STATS = serving_stats(steps=10, latency_s=3.0, unmasked_tokens=32, cached_tokens=16)
OUTCOME = Outcome(
    request_id="r",
    status=OutcomeStatus.COMPLETED,
    finish_reason=FinishReason.LENGTH,
    prompt_tokens=40,
    completion_tokens=20,
    stats=STATS,
    decisions=StepDecisions(at_s=pack_float32(np.array([1.0]))),
)


def recorder(metrics: GatewayMetrics) -> RequestRecorder:
    return RequestRecorder(metrics, "demo", Request(request_id="r", prompt="p", block_length=8), _start_s=0.0)


def value(metrics: GatewayMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"vllm:{name}", {"model_name": "demo", **labels})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("prompt_tokens_total", 40),
        ("generation_tokens_total", 20),
        ("prefix_cache_queries_total", 40),
        ("prefix_cache_hits_total", 16),
        ("spec_decode_num_drafts_total", 10),
        ("spec_decode_num_draft_tokens_total", 80),
        ("spec_decode_num_accepted_tokens_total", 32 - 10),  # 1 + accepted / drafts: mean tokens per step
        ("request_queue_time_seconds_sum", 1.0),
        ("request_decode_time_seconds_sum", 2.0),
        ("request_time_per_output_token_seconds_sum", 0.1),
        ("e2e_request_latency_seconds_count", 1),
    ],
)
def test_a_completed_request_is_counted_under_vllms_names(name: str, expected: float) -> None:
    metrics = GatewayMetrics()
    recorder(metrics).completed(OUTCOME)
    assert value(metrics, name) == expected
    assert value(metrics, "request_success_total", finished_reason="length") == 1


def test_a_stream_observes_its_first_text_once_then_the_gaps() -> None:
    metrics = GatewayMetrics()
    stream = recorder(metrics)
    for _ in range(3):
        stream.text_sent()
    assert value(metrics, "time_to_first_token_seconds_count") == 1
    assert value(metrics, "inter_token_latency_seconds_count") == 2


def test_a_request_that_is_not_completed_counts_as_abort_once() -> None:
    metrics = GatewayMetrics()
    left = recorder(metrics)
    left.not_completed("left")
    left.not_completed("left")
    assert value(metrics, "request_success_total", finished_reason="abort") == 1


def test_a_request_whose_record_of_steps_is_damaged_is_counted() -> None:
    metrics = GatewayMetrics()
    for at_s in (b"", b"abc"):
        recorder(metrics).completed(replace(OUTCOME, decisions=StepDecisions(at_s=at_s)))
    assert value(metrics, "request_success_total", finished_reason="length") == 2


def test_the_load_of_a_model_is_that_of_its_cells_while_a_scheduler_leads() -> None:
    metrics = GatewayMetrics()
    busy, idle = scheduler_stats(active=5, deferred=2, waiting=3), scheduler_stats(active=1, deferred=0, waiting=0)
    for cells, running in (([busy], 3), ([busy, idle], 4)):
        metrics.vllm.set_load({"demo": cells})
        assert [value(metrics, f"num_requests_{state}") for state in ("running", "waiting")] == [running, 5]
        assert value(metrics, "kv_cache_usage_perc") == 300 / 8192
    metrics.vllm.set_load({"demo": []})
    assert value(metrics, "num_requests_running") is None
