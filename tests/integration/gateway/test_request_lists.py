"""GET /v1/requests: filters, pages, requests in progress, their state, and cancelling them."""

import asyncio
from typing import Any

import httpx
import pytest
from nats.aio.msg import Msg

from services.gateway import cell_context
from services.gateway.console import cluster_monitor
from services.gateway.console.cluster_monitor import MAX_RECENT
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.messages.requests import Outcome, OutcomeStatus, UnfinishedRequests
from shared.text import TextModel
from tests.support.gateway import CHAT, LIMIT_S, ONE_CELL, OWN_CELL, RunningGateway, ready, running
from tests.support.scheduler import AnsweringScheduler, active
from tests.support.waiting import eventually, reached

pytestmark = ONE_CELL

LIST = "/v1/requests"
PATH = "/v1/chat/completions"


async def ask(gateway: RunningGateway, **options: Any) -> str:
    """The id of a finished request."""
    return (await gateway.http.post(PATH, json=CHAT | options)).headers["x-request-id"]


async def ids(gateway: RunningGateway, **filters: str | int) -> list[str]:
    reply = await gateway.http.get(LIST, params=filters)
    assert reply.status_code == 200, reply.text
    return [request["id"] for request in reply.json()["data"]]


async def has_listed(gateway: RunningGateway, count: int) -> None:
    """Wait until the list, which follows the outcomes on the bus, has this many."""
    await eventually(lambda: ids(gateway), lambda found: len(found) == count)


@OWN_CELL
async def test_finished_requests_are_selected_and_pages_follow_the_last_request(gateway: RunningGateway) -> None:
    met = await ask(gateway)
    missed = await ask(gateway, slo_ms=1e-3, priority=2)
    gateway.scheduler.status = OutcomeStatus.FAILED
    await gateway.http.post(PATH, json=CHAT)
    failed = gateway.scheduler.requests[-1].request_id
    await has_listed(gateway, 3)
    assert await ids(gateway, status="completed") == [missed, met]
    assert await ids(gateway, slo_met="true") == [met]
    assert await ids(gateway, slo_met="false") == [missed]
    assert await ids(gateway, status="failed") == [failed]
    assert await ids(gateway, instance="worker-test") == [missed, met]
    assert await ids(gateway, instance="no-such") == []
    assert await ids(gateway, id=met[4:20]) == await ids(gateway, id=f"chatcmpl-{met}") == [met]
    [listed] = (await gateway.http.get(LIST, params={"id": missed})).json()["data"]
    assert (listed["key"], listed["priority"], listed["trace_id"]) == ("", 2, None)
    newest_first = [failed, missed, met]
    first = (await gateway.http.get(LIST, params={"limit": 2})).json()
    assert ([each["id"] for each in first["data"]], first["has_more"]) == (newest_first[:2], True)
    second = (await gateway.http.get(LIST, params={"limit": 2, "after": f"chatcmpl-{newest_first[1]}"})).json()
    assert ([each["id"] for each in second["data"]], second["has_more"]) == (newest_first[2:], False)
    assert (first["total"], second["total"]) == (3, 3)
    unknown = await gateway.http.get(LIST, params={"after": "no-such"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "after")


@OWN_CELL
async def test_a_request_is_in_progress_until_its_outcome(gateway: RunningGateway) -> None:
    async with gateway.scheduler.withholding(gateway.http.post(PATH, json=CHAT | {"slo_ms": 700})) as request_id:
        [listed] = (await gateway.http.get(LIST, params={"status": "in_progress"})).json()["data"]
        for name in (request_id, f"chatcmpl-{request_id}"):
            assert (await gateway.http.get(f"{LIST}/{name}")).json() == listed
        assert (listed["object"], listed["id"], listed["status"]) == ("dilaserve.request", request_id, "in_progress")
        assert (listed["slo_ms"], listed["arrival_s"], listed["instance"], listed["steps"]) == (
            700,
            1,
            "worker-test",
            1,
        )
        assert await ids(gateway, status="in_progress", instance="no-such") == []
        assert await ids(gateway, status="in_progress", id="no-such") == []
        assert await ids(gateway) == []
    await has_listed(gateway, 1)
    assert await ids(gateway, status="in_progress") == []
    ended = (await gateway.http.get(f"{LIST}/{request_id}")).json()
    assert (ended["status"], ended["text"]) == ("completed", "The answer is 29.")


async def test_a_page_of_requests_in_progress_may_follow_one_that_has_ended(gateway: RunningGateway) -> None:
    gateway.scheduler.hold = asyncio.Event()
    waiting = [asyncio.create_task(gateway.http.post(PATH, json=CHAT)) for _ in range(3)]
    await reached(lambda: len(gateway.scheduler.requests) == 3)
    listed = sorted(request.request_id for request in gateway.scheduler.requests)  # all arrived at the same time
    assert await ids(gateway, status="in_progress", limit=1) == listed[:1]
    ended = Outcome(
        request_id=listed[0], status=OutcomeStatus.CANCELLED, arrival_s=active(gateway.scheduler.requests[0]).arrival_s
    )
    bus = gateway.scheduler.bus
    await bus.store(bus.subjects.outcomes(listed[0]), ended)
    gateway.scheduler.ended.add(listed[0])
    assert await ids(gateway, status="in_progress", after=listed[0]) == listed[1:]
    assert await ids(gateway, status="in_progress", after=listed[1]) == listed[2:]
    unknown = await gateway.http.get(LIST, params={"status": "in_progress", "after": "no-such"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "after")
    gateway.scheduler.hold.set()
    await asyncio.gather(*waiting)


async def test_no_page_follows_the_last_request_of_a_list_that_is_cut(gateway: RunningGateway) -> None:
    gateway.scheduler.lists_all = False
    async with gateway.scheduler.withholding(gateway.http.post(PATH, json=CHAT)):
        page = (await gateway.http.get(LIST, params={"status": "in_progress"})).json()
        assert (len(page["data"]), page["has_more"]) == (1, True)
        after = {"status": "in_progress", "after": page["data"][0]["id"]}
        page = (await gateway.http.get(LIST, params=after)).json()
        assert (page["data"], page["has_more"]) == ([], False)


@OWN_CELL
async def test_the_whole_id_finds_a_request_that_is_not_listed_any_more(
    bus: Bus, settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler
) -> None:
    for number in range(MAX_RECENT + 1):
        cancelled = Outcome(request_id=f"r-{number}", status=OutcomeStatus.CANCELLED)
        await bus.publish(bus.subjects.outcomes(cancelled.request_id), cancelled)
    await bus.store(bus.subjects.outcomes("last"), Outcome(request_id="last", status=OutcomeStatus.CANCELLED))
    async with ready(settings, text) as gateway:
        await eventually(lambda: ids(gateway, limit=1), lambda found: "last" in found)
        assert await ids(gateway, id="r-1000") == ["r-1000"]
        assert await ids(gateway, id="r-0") == ["r-0"]
        assert await ids(gateway, id="r-0", status="completed") == []
        assert await ids(gateway, id="r-99999") == []


async def finish(bus: Bus, number: int, **fields: Any) -> None:
    """Store the outcome of a request that arrived at this second."""
    request_id = f"r-{number}"
    outcome = Outcome(request_id=request_id, status=OutcomeStatus.COMPLETED, arrival_s=float(number), **fields)
    await bus.store(bus.subjects.outcomes(request_id), outcome)


@OWN_CELL
async def test_an_outcome_that_becomes_unverified_is_shown_so_in_its_place(
    bus: Bus, lonely_gateway: RunningGateway
) -> None:
    for number in range(3):
        await finish(bus, number, text="right")
    await finish(bus, 1, text="right", unverified=True)
    await finish(bus, 0, text="rejected by the stream")
    await finish(bus, 3)
    await has_listed(lonely_gateway, 4)
    listed = (await lonely_gateway.http.get(LIST)).json()["data"]
    assert [each["id"] for each in listed] == ["r-3", "r-2", "r-1", "r-0"]
    assert [each["dilaserve"].get("unverified") for each in listed] == [None, None, True, None]
    assert [each["text"] for each in listed] == ["", "right", "right", "right"]


@OWN_CELL
async def test_a_mark_of_an_unlisted_outcome_does_not_list_it_again(
    bus: Bus,
    settings: GatewaySettings,
    text: TextModel,
    lonely_gateway: RunningGateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_monitor, "MAX_RECENT", 2)
    for number in range(3):
        await finish(bus, number)
    await finish(bus, 0, unverified=True)
    await finish(bus, 1, unverified=True)
    await finish(bus, 3, unverified=True)
    await eventually(lambda: ids(lonely_gateway), lambda found: found == ["r-3", "r-2"])
    monkeypatch.setattr(cluster_monitor, "MAX_RECENT", 10)
    async with running(settings, text) as later:  # reads them from the stream, where the marked ones are the last
        await eventually(lambda: ids(later), lambda found: found == ["r-3", "r-2", "r-1", "r-0"])


async def test_an_unknown_filter_or_value_is_refused_by_its_name(lonely_gateway: RunningGateway) -> None:
    limits = [("limit", value) for value in ("0", "501", "many")]
    for name, value in (("stauts", "failed"), ("status", "done"), ("slo_met", "perhaps"), *limits):
        reply = await lonely_gateway.http.get(LIST, params={name: value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


@OWN_CELL
async def test_a_list_does_not_wait_longer_while_others_wait_for_a_scheduler(
    bus: Bus, lonely_gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: asyncio.Queue[Msg] = asyncio.Queue()
    await bus.nc.subscribe(bus.subjects.unfinished, cb=queries.put)
    await bus.nc.flush()
    await eventually(lonely_gateway.readiness, lambda found: found != "the bus is not connected")
    monkeypatch.setattr(cell_context, "QUERY_TIMEOUT_S", LIMIT_S)
    first = asyncio.create_task(lonely_gateway.http.get(LIST, params={"status": "in_progress"}))
    query = await asyncio.wait_for(queries.get(), LIMIT_S)
    monkeypatch.setattr(cell_context, "QUERY_TIMEOUT_S", 0.1)
    assert (await lonely_gateway.http.get(LIST, params={"status": "in_progress"})).status_code == 503
    await bus.publish(query.reply, UnfinishedRequests(requests=[]))
    assert (await first).status_code == 200


async def test_without_a_scheduler_no_request_in_progress_is_known(lonely_gateway: RunningGateway) -> None:
    reply: httpx.Response = await lonely_gateway.http.get(LIST, params={"status": "in_progress"})
    assert reply.status_code == 503
    assert "no scheduler of the cell" in reply.json()["error"]["message"]


async def test_a_request_is_cancelled_by_its_id(gateway: RunningGateway) -> None:
    async with gateway.scheduler.withholding(gateway.http.post(PATH, json=CHAT)) as request_id:
        cancelled = await gateway.http.post(f"/v1/requests/{request_id}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelling")
        assert await gateway.scheduler.cancelled.get() == request_id
    again = await gateway.http.post(f"/v1/requests/{request_id}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "request_ended")


async def test_an_unknown_request_is_neither_running_nor_cancelled(gateway: RunningGateway) -> None:
    replies = [await gateway.http.get(f"/v1/requests/{name}") for name in ("abc", "a.b", "*", "%3E", "x" * 100)]
    for reply in (*replies, await gateway.http.post("/v1/requests/no-such/cancel")):
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found"), reply.url
    assert gateway.scheduler.cancelled.empty()


async def test_while_no_scheduler_answers_a_client_must_repeat(lonely_gateway: RunningGateway) -> None:
    path = f"/v1/requests/{'0' * 32}"
    for reply in (await lonely_gateway.http.get(path), await lonely_gateway.http.post(f"{path}/cancel")):
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        assert int(reply.headers["retry-after"]) >= 1
