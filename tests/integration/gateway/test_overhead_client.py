"""The client of `experiments.gateway_overhead`, against a gateway: it refuses foreign hosts and undeclared bodies."""

from typing import Any

import pytest

from dilaserve.load.workload import LoadRequest
from experiments import gateway_overhead
from experiments.gateway_overhead import Connection
from experiments.live_cluster import chat_body
from tests.support.gateway import RunningGateway


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
