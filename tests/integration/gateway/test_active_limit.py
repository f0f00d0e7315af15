"""The most requests that a gateway holds at the same time."""

import asyncio
from typing import Any

import pytest

from tests.support.gateway import CHAT, MODEL, ONE_CELL, RunningGateway
from tests.support.waiting import reached

pytestmark = ONE_CELL

PATH = "/v1/chat/completions"
QUESTIONS = [{"type": "predicate", "instructions": "b"}] * 3


@pytest.fixture(scope="module")
def changes() -> dict[str, Any]:
    return {"max_active_requests": 2}


async def test_concurrent_requests_never_exceed_the_gateways_limit(gateway: RunningGateway) -> None:
    gateway.scheduler.hold = asyncio.Event()
    names = [{"Idempotency-Key": f"pears-{number}"} for number in range(6)]
    sent = [asyncio.create_task(gateway.http.post(PATH, json=CHAT, headers=name)) for name in names]
    await reached(lambda: sum(reply.done() for reply in sent) == 4)
    gateway.scheduler.hold.set()
    replies = [await reply for reply in sent]
    refused = [reply for reply in replies if reply.status_code != 200]
    assert len(refused) == 4
    for reply in refused:
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (PATH, {**CHAT, "n": 3}, "n"),
        ("/v1/decisions", {"model": MODEL, "input": "a", "questions": QUESTIONS}, "questions"),
    ],
)
async def test_more_choices_than_the_limit_are_a_bad_request(
    gateway: RunningGateway, path: str, fields: dict[str, Any], param: str
) -> None:
    error = (await gateway.http.post(path, json=fields)).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param)
    assert "the limit of this gateway is 2 requests in flight" in error["message"]
