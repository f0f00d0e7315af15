"""Requests that have not ended: their state, and cancelling them."""

import asyncio
from typing import Any

from tests.support.gateway import RunningGateway
from tests.support.waiting import reached

CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "How many pears?"}]}
PATH = "/v1/chat/completions"


async def test_a_request_is_in_progress_until_its_outcome(gateway: RunningGateway) -> None:
    gateway.scheduler.hold = asyncio.Event()
    waiting = asyncio.create_task(gateway.http.post(PATH, json=CHAT))
    await reached(lambda: len(gateway.scheduler.requests) == 1)
    request_id = gateway.scheduler.requests[0].request_id
    for name in (request_id, f"chatcmpl-{request_id}"):
        running = (await gateway.http.get(f"/v1/requests/{name}")).json()
        assert (running["object"], running["id"], running["status"]) == ("dilaserve.request", request_id, "in_progress")
        assert (running["arrival_s"], running["instance"], running["steps"]) == (1.0, "worker-test", 1)
    gateway.scheduler.hold.set()
    assert (await waiting).status_code == 200
    ended = (await gateway.http.get(f"/v1/requests/{request_id}")).json()
    assert (ended["status"], ended["text"]) == ("completed", "The answer is 29.")


async def test_a_request_is_cancelled_by_its_id(gateway: RunningGateway) -> None:
    gateway.scheduler.hold = asyncio.Event()
    waiting = asyncio.create_task(gateway.http.post(PATH, json=CHAT))
    await reached(lambda: len(gateway.scheduler.requests) == 1)
    request_id = gateway.scheduler.requests[0].request_id
    cancelled = await gateway.http.post(f"/v1/requests/{request_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelling")
    assert await gateway.scheduler.cancelled.get() == request_id
    gateway.scheduler.hold.set()
    await waiting
    again = await gateway.http.post(f"/v1/requests/{request_id}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "request_ended")


async def test_an_unknown_request_is_neither_running_nor_cancelled(gateway: RunningGateway) -> None:
    for reply in (
        await gateway.http.get("/v1/requests/no-such"),
        await gateway.http.post("/v1/requests/no-such/cancel"),
        await gateway.http.get("/v1/requests/a.b"),
    ):
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    assert gateway.scheduler.cancelled.empty()


async def test_while_no_scheduler_answers_a_client_must_repeat(lonely_gateway: RunningGateway) -> None:
    path = f"/v1/requests/{'0' * 32}"
    for reply in (await lonely_gateway.http.get(path), await lonely_gateway.http.post(f"{path}/cancel")):
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        assert int(reply.headers["retry-after"]) >= 1
