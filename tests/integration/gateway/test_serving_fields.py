"""Tiers, efforts and headers that replace DiLaServe's own fields."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.support.gateway import CHAT, ONE_CELL, RunningGateway
from tests.support.waiting import reached

pytestmark = ONE_CELL


@pytest.fixture(scope="module")
def changes() -> dict[str, Any]:
    return {"service_tiers": ("flex=60000:-20",), "reasoning_efforts": ("high=0.9",)}


async def test_openais_client_names_a_tier_and_an_effort(gateway: RunningGateway, client: AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(**CHAT, service_tier="flex", reasoning_effort="high")
    with pytest.raises(BadRequestError, match="accepted: auto, default, flex") as refusal:
        await client.chat.completions.create(**CHAT, service_tier="priority")
    [request] = gateway.scheduler.requests
    assert (request.slo_s, request.priority, request.min_threshold) == (60.0, -20, 0.9)
    assert (reply.service_tier, refusal.value.param) == ("flex", "service_tier")


async def test_headers_give_the_fields_of_clients_that_cannot_add_them(gateway: RunningGateway) -> None:
    headers = {
        "X-Dilaserve-Slo-Ms": "700",
        "X-Dilaserve-Priority": "5",
        "X-Dilaserve-Min-Threshold": "0.75",
        "X-Dilaserve-Block-Length": "8",
    }
    reply = await gateway.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    [request] = gateway.scheduler.requests
    assert (request.slo_s, request.priority, request.min_threshold, request.block_length) == (0.7, 5, 0.75, 8)
    assert reply.json()["dilaserve"]["slo_ms"] == 700


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("X-Dilaserve-Slo-Ms", "soon", "must be a number"),
        ("X-Dilaserve-Slo-Ms", "nan", "must be finite"),
        ("X-Dilaserve-Priority", "high", "must be an integer"),
        ("X-Dilaserve-Min-Threshold", "1.5", "must be at most 1.0"),
    ],
)
async def test_an_invalid_header_is_refused_by_name(
    gateway: RunningGateway, name: str, value: str, reason: str
) -> None:
    refused = await gateway.http.post("/v1/chat/completions", json=CHAT, headers={name: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["message"]) == (400, name, f"{name} {reason}")


async def test_a_line_of_a_batch_may_name_a_tier(gateway: RunningGateway, client: AsyncOpenAI) -> None:
    body = {**CHAT, "service_tier": "flex"}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    file = await client.files.create(file=("in.jsonl", line.encode()), purpose="batch")
    await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    await reached(lambda: len(gateway.scheduler.requests) == 1)
    [request] = gateway.scheduler.requests
    assert (request.slo_s, request.priority) == (60.0, -50)
