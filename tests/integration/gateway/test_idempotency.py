"""Requests that may be repeated: those with an `Idempotency-Key`, and those that a cell which sheds has refused."""

import asyncio
import secrets
from typing import Any

import httpx
import pytest

from services.gateway.settings import GatewaySettings
from shared.messages.instances import InstanceState
from shared.messages.requests import OutcomeStatus
from shared.text import TextModel
from tests.builders import scheduler_stats
from tests.support.gateway import CHAT, ONE_CELL, OWN_CELL, RunningGateway, claim_of, leave, ready, text_of
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import until

pytestmark = ONE_CELL

PROMPT: dict[str, Any] = {"model": "tiny-llada"}
INPUT: dict[str, Any] = PROMPT | {"input": "How many pears?"}
PATH = "/v1/chat/completions"


async def post(gateway: RunningGateway, key: str, **changes: Any) -> httpx.Response:
    return await gateway.http.post(PATH, json=CHAT | changes, headers={"Idempotency-Key": key})


@OWN_CELL
async def test_a_repeated_request_gets_the_same_outcome_even_after_a_restart(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler
) -> None:
    async with ready(settings, text) as first:
        replies = [await post(first, "order 66") for _ in range(2)]
        streamed = await post(first, "another", stream=True)
    scheduler.answer = lambda _: "something else"
    async with ready(settings, text) as second:
        replies.append(await post(second, "order 66"))
        assert {reply.json()["choices"][0]["message"]["content"] for reply in replies} == {"The answer is 29."}
        assert len({reply.headers["x-request-id"] for reply in replies}) == 1
        again = await post(second, "another", stream=True)
        assert text_of(streamed, stream=True) == text_of(again, stream=True) == "The answer is 29."
        assert len(scheduler.requests) == 2

        for other in ({"max_tokens": 64}, {"seed": 1}, {"messages": [{"role": "user", "content": "?"}]}):
            refused = await post(second, "order 66", **other)
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert (await post(second, "")).status_code == 400
        assert (await post(second, "x" * 256)).status_code == 400
        assert (await post(second, "order 67")).json()["choices"][0]["message"]["content"] == "something else"


@pytest.mark.parametrize(
    ("path", "body", "other"),
    [
        (PATH, CHAT | {"n": 2}, CHAT),
        ("/v1/completions", PROMPT | {"prompt": ["A", "B"]}, PROMPT | {"prompt": "A"}),
        ("/v1/completions", PROMPT | {"prompt": ["A", "B"]}, PROMPT | {"prompt": ["A", "C"]}),
        ("/v1/responses", INPUT | {"metadata": {"a": "1"}}, INPUT | {"metadata": {"a": "2"}}),
        ("/v1/messages", CHAT | {"max_tokens": 8}, CHAT | {"max_tokens": 8, "metadata": {"user_id": "u"}}),
    ],
)
async def test_a_key_belongs_to_the_whole_body(
    gateway: RunningGateway, path: str, body: dict[str, Any], other: dict[str, Any]
) -> None:
    key = {"Idempotency-Key": secrets.token_hex()}
    replies = [await gateway.http.post(path, json=each, headers=key) for each in (body, body, other)]
    assert [reply.status_code for reply in replies] == [200, 200, 422]
    assert replies[0].headers["x-request-id"] == replies[1].headers["x-request-id"]


async def test_a_disconnected_client_can_retry_for_the_outcome(gateway: RunningGateway) -> None:
    gateway.scheduler.hold = asyncio.Event()
    request_id = await leave(gateway, PATH, json=CHAT, headers={"Idempotency-Key": "lost"})
    gateway.scheduler.hold.set()
    reply = await post(gateway, "lost")
    assert (reply.status_code, reply.headers["x-request-id"]) == (200, request_id)
    assert gateway.scheduler.cancelled.empty()


async def test_a_request_that_the_bus_lost_is_served_when_it_is_repeated(gateway: RunningGateway) -> None:
    gateway.scheduler.losses = 1
    lost = await post(gateway, "lost by the bus")
    assert (lost.status_code, lost.json()["error"]["message"]) == (503, "the bus lost the request")
    assert "retry-after" in lost.headers
    replies = [await post(gateway, "lost by the bus") for _ in range(2)]
    assert [text_of(reply, stream=False) for reply in replies] == 2 * ["The answer is 29."]
    assert len(gateway.scheduler.requests) == 2


@OWN_CELL
async def test_a_claim_is_confirmed_once_the_bus_has_stored_the_request(gateway: RunningGateway) -> None:
    bus = gateway.scheduler.bus
    requests = (await bus.js.stream_info(bus.subjects.stream("REQUESTS"))).config
    await bus.js.update_stream(requests.evolve(max_msgs=1))
    async with gateway.scheduler.withholding(post(gateway, "stored")) as stored_id:
        assert (await post(gateway, "refused")).status_code == 503
    bucket = await bus.bucket(bus.subjects.claims_bucket)
    [refused_id] = set(await bucket.keys()) - {stored_id}
    assert (await claim_of(bus, stored_id)).is_stored
    assert not (await claim_of(bus, refused_id)).is_stored
    assert (await post(gateway, "refused")).headers["x-request-id"] == refused_id
    assert (await claim_of(bus, refused_id)).is_stored
    assert (await post(gateway, "stored", seed=1)).status_code == 422  # the fingerprint is kept


async def test_a_request_with_a_key_waits_for_an_instance(gateway: RunningGateway) -> None:
    gateway.scheduler.instance_state = InstanceState.DRAINING
    await gateway.until("no instance is ready")
    waiting = asyncio.create_task(post(gateway, "patient"))
    assert (await gateway.http.post(PATH, json=CHAT)).headers["retry-after"] == "2"  # without a key
    gateway.scheduler.instance_state = InstanceState.READY
    assert (await waiting).status_code == 200


@OWN_CELL
async def test_a_gateway_that_stops_refuses_a_waiting_request(gateway: RunningGateway) -> None:
    async with gateway.scheduler.withholding(post(gateway, "open")):
        gateway.scheduler.instance_state = InstanceState.DRAINING
        await gateway.until("no instance is ready")
        waiting = asyncio.create_task(post(gateway, "patient"))
        await gateway.http.get("/health")
        gateway.stop.set()
        assert (await waiting).json()["error"]["message"] == "the gateway is shutting down"


async def let_shed(gateway: RunningGateway, *, shed: bool) -> None:
    """Let the cell shed or not, and wait until its requests show that the gateway knows."""
    gateway.scheduler.stats = scheduler_stats(shed=shed)

    async def is_known() -> bool:
        assert (await gateway.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        return gateway.scheduler.requests[-1].may_refuse == shed

    await until(is_known)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_gets_a_429_with_retry_after_and_may_be_repeated(
    gateway: RunningGateway, *, stream: bool
) -> None:
    await let_shed(gateway, shed=True)
    gateway.scheduler.status = OutcomeStatus.REFUSED
    headers = {"Idempotency-Key": f"pears-{stream}"}
    refused = await gateway.http.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("slo_unattainable", "slo_ms")
    gateway.scheduler.status = OutcomeStatus.COMPLETED
    accepted = await gateway.http.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers)
    assert accepted.status_code == 200
    assert '"slo_met"' in accepted.text


async def test_only_a_cell_that_sheds_may_refuse(gateway: RunningGateway) -> None:
    for shed in (True, False):
        await let_shed(gateway, shed=shed)
