"""One request in the trace and the metrics of every service."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from dilaserve.stack.ports import LOOPBACK, check_free, free_ports
from dilaserve.stack.up_options import DEMO_MODEL
from shared.errors import BadInput
from tests.support.metrics import exported
from tests.support.otlp import collecting
from tests.support.stack import START_S, new_data_dir, running_stack
from tests.support.trace_picture import draw, ordered

pytestmark = pytest.mark.slow

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
NUM_PORTS = 4  # of scheduler, predictor, reconfigurator and one worker

Scraped = dict[str, float]
"""Samples by name, summed over their labels."""


@dataclass(frozen=True, slots=True)
class Served:
    """A request's reply, its spans by service, and the metrics of all services after it."""

    reply: dict[str, Any]
    spans: dict[str, list[Span]]
    metrics: Scraped


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with collecting() as collector, new_data_dir() as data_dir, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DILASERVE_OTLP_ENDPOINT", collector.url)
        first = consecutive_free_ports(NUM_PORTS)
        with running_stack(DEMO_MODEL, data_dir, "--instances", "1x1", "--slots", 1, "--metrics-port", first) as stack:
            body = {"model": "demo", "prompt": "Tom has 5 apples and buys 7 more.", "max_tokens": 256, "slo_ms": 60_000}
            headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
            reply = httpx.post(f"{stack.url}/v1/completions", json=body, headers=headers, timeout=60)
            assert reply.status_code == 200, reply.text
            urls = [stack.url, *(f"http://127.0.0.1:{port}" for port in range(first, first + NUM_PORTS))]
            metrics = scrape_until(urls, "dilaserve_scheduler_requests_total", "dilaserve_reconfigurator_rows_total")
            assert stack.stop() == 0  # sends the remaining spans
        yield Served(reply.json(), collector.trace(TRACE_ID), metrics)


def consecutive_free_ports(count: int) -> int:
    """The first of `count` consecutive free ports."""
    while True:
        first = free_ports(1)[0]
        try:
            for port in range(first, first + count):
                check_free(LOOPBACK, port)
        except BadInput:
            continue
        return first


def scrape_until(urls: list[str], *names: str) -> Scraped:
    """Poll until these metrics, which change only after the request has ended, are above 0."""
    deadline_s = time.monotonic() + START_S
    while True:
        metrics: Scraped = {}
        with suppress(httpx.ConnectError):  # the reconfigurator may start after the first reply
            metrics = scrape(urls)
        if all(metrics.get(name) for name in names):
            return metrics
        assert time.monotonic() < deadline_s, f"{names} stay at 0"
        time.sleep(0.1)


def scrape(urls: list[str]) -> Scraped:
    metrics: Scraped = {}
    for url in urls:
        text = httpx.get(f"{url}/metrics").raise_for_status().text
        for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
            metrics[sample.name] = metrics.get(sample.name, 0.0) + sample.value
    return metrics


def test_one_trace_covers_gateway_scheduler_predictor_and_worker(served: Served) -> None:
    spans = served.spans
    assert set(spans) == {f"dilaserve-{name}" for name in ("gateway", "scheduler", "predictor", "worker")}
    of_gateway = {span.name: span for span in spans["dilaserve-gateway"]}
    assert of_gateway["POST /v1/completions"].parent_span_id.hex() == PARENT_ID
    assert of_gateway["request"].parent_span_id == of_gateway["POST /v1/completions"].span_id
    [schedule] = [span for span in spans["dilaserve-scheduler"] if span.name == "schedule"]
    runs = {span.span_id: span for span in spans["dilaserve-scheduler"] if span.name == "run"}
    asked = {span.span_id: span for span in spans["dilaserve-scheduler"] if span.name == "ask predictor"}
    assert schedule.parent_span_id == of_gateway["request"].span_id
    assert {run.parent_span_id for run in runs.values()} == {schedule.span_id}
    assert {span.parent_span_id for span in spans["dilaserve-worker"]} == set(runs)
    assert {span.parent_span_id for span in spans["dilaserve-predictor"]} <= set(asked)
    assert {link.span_id for span in asked.values() for link in span.links} == {of_gateway["request"].span_id}
    ran, steps = spans["dilaserve-worker"], served.reply["dilaserve"]["steps"]
    assert sum(event.name == "step" for span in ran for event in span.events) == steps
    assert sum(event.name == "result" for run in runs.values() for event in run.events) == steps


def test_the_picture_of_a_trace_has_every_service_below_the_gateway(served: Served, tmp_path: Path) -> None:
    """With DILASERVE_TRACE_PICTURE it becomes that of the documentation."""
    path = Path(os.environ.get("DILASERVE_TRACE_PICTURE", tmp_path / "trace.png"))
    draw(served.spans, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    tree = [(depth, service.removeprefix("dilaserve-"), span.name) for depth, service, span in ordered(served.spans)]
    assert tree[:2] == [(0, "gateway", "POST /v1/completions"), (1, "gateway", "request")]
    shown = {
        (3, "scheduler", "run"),
        (4, "worker", "denoise"),
        (2, "scheduler", "ask predictor"),
        (3, "predictor", "predict"),
    }
    assert shown <= set(tree)


def test_every_service_counts_the_request_in_its_metrics(served: Served) -> None:
    stats, metrics = served.reply["dilaserve"], served.metrics
    assert metrics["dilaserve_gateway_requests_total"] == 1
    assert metrics["dilaserve_gateway_bus_free_bytes"] > 0
    assert metrics["dilaserve_scheduler_slo_met_total"] == metrics["dilaserve_scheduler_arrivals_total"] == 1
    assert metrics["dilaserve_scheduler_request_steps_sum"] == stats["steps"]
    assert metrics["dilaserve_scheduler_request_recompute_steps_sum"] == stats["recompute_steps"]
    assert metrics["dilaserve_scheduler_request_threshold_sum"] == pytest.approx(stats["mean_threshold"])
    assert metrics["dilaserve_worker_batch_requests_sum"] == stats["steps"]
    assert metrics["dilaserve_worker_step_seconds_sum"] * 1000 == pytest.approx(stats["step_ms"], rel=0.01)
    for name in (
        "scheduler_request_predicted_steps_count",
        "scheduler_cycle_seconds_count",
        "scheduler_results_delay_seconds_count",
        "worker_jobs_delay_seconds_count",
        "worker_kv_cache_tokens",
        "predictor_batch_requests_sum",
        "reconfigurator_rows_total",
        "worker_info",
    ):
        assert metrics[f"dilaserve_{name}"] > 0, name
    assert metrics["vllm:request_success_total"] == metrics["vllm:request_queue_time_seconds_count"] == 1
    assert metrics["vllm:spec_decode_num_drafts_total"] == stats["steps"]
    assert "vllm:num_requests_running" in metrics


def test_services_export_only_the_listed_metrics(served: Served) -> None:
    samples = {name for name in served.metrics if name.startswith(("dilaserve_", "vllm:"))}
    known = {sample for family in exported() for sample in family.samples}
    assert {name for name in samples if not name.endswith("_created")} <= known
