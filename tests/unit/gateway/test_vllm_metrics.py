"""The gateway's metrics under vLLM's names."""

import numpy as np
import pytest
from msgspec.structs import replace

from services.gateway.metrics import GatewayMetrics, RequestRecorder
from shared.arrays import pack_float32
from shared.messages.decisions import StepDecisions
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus, Request
from tests.builders import scheduler_stats, serving_stats

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
