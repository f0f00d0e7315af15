"""One request followed through every service by its trace."""

import httpx
import pytest

from dilaserve.commands.up import DEMO_MODEL
from tests.support.otlp import collecting
from tests.support.stack import new_data_dir, running_stack

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"


def test_one_trace_leads_from_http_to_worker_and_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector, new_data_dir() as data_dir:
        monkeypatch.setenv("DILASERVE_OTLP_ENDPOINT", collector.url)
        with running_stack(DEMO_MODEL, data_dir, "--instances", "1x1") as stack:
            body = {"model": "demo", "prompt": "Tom has 5 apples and buys 7 more.", "max_tokens": 64, "slo_ms": 60_000}
            headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
            reply = httpx.post(f"{stack.url}/v1/completions", json=body, headers=headers, timeout=60)
            assert reply.status_code == 200, reply.text
            assert stack.stop() == 0  # what is left of the spans is sent
    served, spans = reply.json()["dilaserve"], collector.trace(TRACE_ID)
    assert set(spans) == {f"dilaserve-{name}" for name in ("gateway", "scheduler", "predictor", "worker")}
    of_gateway = {span.name: span for span in spans["dilaserve-gateway"]}
    assert of_gateway["POST /v1/completions"].parent_span_id.hex() == PARENT_ID
    assert of_gateway["request"].parent_span_id == of_gateway["POST /v1/completions"].span_id
    steps = {name: sum(event.name == "step" for span in spans[name] for event in span.events) for name in spans}
    assert steps["dilaserve-scheduler"] == steps["dilaserve-worker"] == served["steps"]
