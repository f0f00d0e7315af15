"""The clients that measure: that of `dilaserve bench`, and that of `experiments.gateway_overhead`, which refuses
foreign hosts and undeclared bodies."""

from typing import Any

import pytest

from dilaserve.load.client import run_load
from dilaserve.load.workload import LoadRequest, RequestLoad
from experiments import gateway_overhead
from experiments.gateway_overhead import Connection
from experiments.live_cluster import chat_body
from tests.support.gateway import ONE_CELL, RunningGateway

pytestmark = ONE_CELL


@pytest.mark.parametrize("raw", [False, True])
async def test_a_streamed_reply_has_the_same_figures_and_its_first_text(gateway: RunningGateway, *, raw: bool) -> None:
    load = RequestLoad([LoadRequest(prompt="How many pears?", output_tokens=32, raw=raw)], [0.0], 1.0)
    [whole] = await run_load(gateway.url, load, 5.0, lambda _: None)
    [streamed] = await run_load(gateway.url, load, 5.0, lambda _: None, stream=True)
    assert (whole.error, streamed.error, whole.first_text_s) == (None, None, None)
    assert (streamed.text, streamed.text_tokens, streamed.steps) == (whole.text, whole.text_tokens, whole.steps)
    assert streamed.text_tokens > 0
    assert streamed.first_text_s is not None
    assert streamed.first_text_s > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_has_the_reason(gateway: RunningGateway, *, stream: bool) -> None:
    load = RequestLoad([LoadRequest(prompt="", output_tokens=32)], [0.0], 1.0)
    [reply] = await run_load(gateway.url, load, 5.0, lambda _: None, stream=stream)
    assert reply.error is not None
    assert reply.error.startswith("400 ")


def tiny_chat_body(prompt: str, **options: Any) -> dict[str, object]:
    return {**chat_body(prompt, **options), "model": "tiny-llada"}


async def test_the_gateway_serves_the_client_that_measures_it(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_overhead, "chat_body", tiny_chat_body)
    row = LoadRequest(prompt="How many pears?", output_tokens=32)
    connection = await Connection.open(gateway.url)
    try:
        timed = await connection.complete(row)
        first_ms = await connection.first_text_ms(row)
    finally:
        await connection.close()
    assert timed.total_ms > 0
    assert first_ms > 0
    assert len(gateway.scheduler.requests) == 2
