"""Replies to clients when a part of the cell is unavailable, fails or sends invalid messages."""

import asyncio
import json
from pathlib import Path

import msgspec
import openai
import pytest
from structlog.testing import capture_logs

from services.gateway.bus_connection import BusConnection
from services.gateway.settings import GatewaySettings
from services.gateway.stores.file_store import FileStore
from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.errors import RetryLater
from shared.messages.instances import InstanceState
from shared.messages.plans import PlanRecord, PlanState
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus, Progress
from shared.tasks import cancel
from shared.text import TextModel
from tests.support.gateway import CHAT, LIMIT_S, ONE_CELL, OWN_CELL, RunningGateway, leave, ready, running, text_of
from tests.support.nats import NatsServer
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import eventually, reached

pytestmark = ONE_CELL

PATH = "/v1/chat/completions"


async def test_without_an_instance_a_completion_is_unavailable(lonely_gateway: RunningGateway) -> None:
    reply = await lonely_gateway.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
    assert reply.json()["error"]["message"] == "no instance is ready"
    assert reply.json()["error"]["type"] == "server_error"


@OWN_CELL
async def test_requests_are_accepted_and_wait_while_a_plan_is_executed(
    lonely_gateway: RunningGateway, scheduler: AnsweringScheduler
) -> None:
    plan = PlanRecord(plan_id="1", decided_s=0.0, state=PlanState.RUNNING, reason="a test")
    await lonely_gateway.until("ready")
    await scheduler.bus.publish(scheduler.bus.subjects.plans("1"), plan)
    for state in (PlanState.STAYED, PlanState.REPLACED):  # decided during the transition; the later plan follows
        other = msgspec.structs.replace(plan, plan_id=state, state=state)
        await scheduler.bus.publish(scheduler.bus.subjects.plans(other.plan_id), other)
    scheduler.instance_state = InstanceState.DRAINING
    await lonely_gateway.until("no instance is ready")
    assert (await lonely_gateway.http.post(PATH, json=CHAT)).status_code == 200
    failed = msgspec.structs.replace(plan, state=PlanState.FAILED)
    await scheduler.bus.publish(scheduler.bus.subjects.plans("1"), failed)
    await eventually(lambda: lonely_gateway.http.post(PATH, json=CHAT), lambda found: found.status_code == 503)


@OWN_CELL
async def test_without_a_bus_the_gateway_runs_and_reports_it(settings: GatewaySettings, text: TextModel) -> None:
    away = GatewaySettings(nats_url="nats://127.0.0.1:1", model=settings.model)
    async with running(away, text) as gateway:
        assert (await gateway.http.get("/health")).status_code == 200
        for reply in (
            await gateway.http.get("/ready"),
            await gateway.http.post(PATH, json=CHAT),
            await gateway.http.get("/v1/requests/abc"),
        ):
            assert reply.status_code == 503
            assert reply.json()["error"]["message"] == "the bus is not connected"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_request(gateway: RunningGateway, stream: bool) -> None:
    gateway.scheduler.hold = asyncio.Event()
    request_id = await leave(gateway, PATH, json=CHAT | {"stream": stream})
    async with asyncio.timeout(LIMIT_S):
        assert await gateway.scheduler.cancelled.get() == request_id
    await gateway.metric("dilaserve_gateway_active_requests 0.0")


@pytest.mark.parametrize(
    ("ended", "status", "code"),
    [
        (OutcomeStatus.REJECTED, 400, "rejected"),
        (OutcomeStatus.FAILED, 500, "failed"),
        (OutcomeStatus.CANCELLED, 410, "cancelled"),
    ],
)
async def test_a_request_that_is_not_completed_gets_an_error(
    gateway: RunningGateway, ended: OutcomeStatus, status: int, code: str
) -> None:
    gateway.scheduler.status = ended
    reply = await gateway.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert reply.headers["x-request-id"] == gateway.scheduler.requests[0].request_id
    streamed = await gateway.http.post(PATH, json=CHAT | {"stream": True})
    last = streamed.text.strip().split("\n\n")[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["code"] == code
    async with gateway.openai() as api:
        with pytest.raises(openai.APIError, match=f"the test chose {ended.value}"):
            _ = [chunk async for chunk in await api.chat.completions.create(**CHAT, stream=True)]


async def test_an_outcome_without_log_probabilities_is_an_error_that_names_the_request(gateway: RunningGateway) -> None:
    failed, gateway.scheduler.hold = 'dilaserve_gateway_requests_total{outcome="failed"}', asyncio.Event()
    before = await gateway.value(failed)
    sent = asyncio.create_task(gateway.http.post(PATH, json=CHAT | {"logprobs": True}))
    name, bus = await gateway.scheduler.received(), gateway.scheduler.bus
    bare = Outcome(request_id=name, status=OutcomeStatus.COMPLETED, text="29", completion_tokens=2)
    await bus.store(bus.subjects.outcomes(name), bare)
    reply = await sent
    assert (reply.status_code, reply.headers.get("x-request-id")) == (500, name)
    assert await gateway.value(failed) == before + 1
    gateway.scheduler.hold.set()


async def test_an_internal_error_announces_that_its_connection_closes(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileStore, "owned_by", None)  # a call of it is an unexpected error
    for _ in range(5):  # on one connection, the second could meet its end
        reply = await gateway.http.get("/v1/files")
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
        assert reply.headers["Connection"] == "close"


async def test_invalid_messages_on_the_bus_are_ignored(gateway: RunningGateway) -> None:
    bus = gateway.scheduler.bus
    gateway.scheduler.hold = asyncio.Event()
    sent = asyncio.create_task(gateway.http.post(PATH, json=CHAT | {"stream": True}))
    name = await gateway.scheduler.received()
    beyond = Progress(step=0, positions=b"\xff\xff\xff\x7f", tokens=bytes(4), confidences=bytes(4))
    uneven = Progress(step=0, positions=bytes(3), tokens=bytes(4), confidences=b"")
    for invalid in (b"", b"\x00invalid", b'{"status": 3}', encode(beyond), encode(uneven)):
        await bus.nc.publish(bus.subjects.progress(name), invalid)
        await bus.nc.publish(bus.subjects.outcomes(name), invalid)
        await bus.nc.publish(f"$KV.{bus.subjects.instances_bucket}.worker-invalid", invalid)
    await bus.nc.flush()
    gateway.scheduler.hold.set()
    assert (await sent).text.endswith("data: [DONE]\n\n")
    assert await gateway.readiness() == "ready"


async def test_an_outcome_can_be_fetched_later_by_either_id(gateway: RunningGateway) -> None:
    reply = (await gateway.http.post(PATH, json=CHAT)).json()
    for name in (reply["id"], reply["dilaserve"]["request_id"]):
        stored = (await gateway.http.get(f"/v1/requests/{name}")).json()
        assert (stored["status"], stored["text"]) == ("completed", "The answer is 29.")
        assert stored["usage"] == reply["usage"]
        assert stored["dilaserve"] == reply["dilaserve"]


@OWN_CELL
async def test_a_request_that_times_out_is_cancelled(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler
) -> None:
    scheduler.hold = asyncio.Event()
    async with ready(msgspec.structs.replace(settings, request_timeout_s=0.2), text) as gateway:
        reply = await gateway.http.post(PATH, json=CHAT)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
        assert reply.headers["x-request-id"] == scheduler.requests[0].request_id
        async with asyncio.timeout(LIMIT_S):
            assert await scheduler.cancelled.get() == scheduler.requests[0].request_id


@OWN_CELL
async def test_an_outcome_stored_during_a_disconnection_is_found(
    tmp_path: Path, text: TextModel, tiny_model_dir: Path
) -> None:
    server, elsewhere = NatsServer(tmp_path), NatsServer(tmp_path)  # one store, two ports
    server.start()
    bus = await Bus.connect(server.url, "cut", name="test")
    await bus.set_up()
    scheduler = AnsweringScheduler(bus, text, hold=asyncio.Event())
    answering = asyncio.create_task(scheduler.run())
    settings = GatewaySettings(nats_url=server.url, cell="cut", model=str(tiny_model_dir))
    try:
        async with ready(settings, text) as gateway:
            forms = (False, True)
            sent = [asyncio.create_task(gateway.http.post(PATH, json=CHAT | {"stream": stream})) for stream in forms]
            names = [await scheduler.received() for _ in sent]
            await cancel([answering])
            await bus.nc.close()
            server.stop()
            await store_elsewhere(elsewhere, "cut", *names)
            server.start()
            for reply, stream in zip(await asyncio.gather(*sent), forms, strict=True):
                assert reply.status_code == 200
                assert text_of(reply, stream=stream) == "The answer is 29."
    finally:
        server.stop()


async def store_elsewhere(server: NatsServer, cell: str, *request_ids: str) -> None:
    """Store outcomes while the gateway is disconnected."""
    server.start()
    bus = await Bus.connect(server.url, cell, name="test")
    for request_id in request_ids:
        outcome = Outcome(
            request_id=request_id,
            status=OutcomeStatus.COMPLETED,
            text="The answer is 29.",
            finish_reason=FinishReason.STOP,
        )
        await bus.store(bus.subjects.outcomes(request_id), outcome)
    await bus.close()
    server.stop()


@OWN_CELL
async def test_a_stopping_gateway_refuses_new_requests_and_finishes_open_ones(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.__main__.DRAIN_REPORT_S", 0.01)
    gateway.scheduler.hold = asyncio.Event()
    whole = asyncio.create_task(gateway.http.post(PATH, json=CHAT))
    stream = asyncio.create_task(gateway.http.post(PATH, json=CHAT | {"stream": True}))
    await gateway.scheduler.received()
    await gateway.scheduler.received()
    with capture_logs() as lines:
        gateway.stop.set()
        await gateway.until("the gateway is shutting down")
        assert (await gateway.http.post(PATH, json=CHAT)).status_code == 503
        await reached(lambda: sum(line.get("requests") == 2 for line in lines) > 1)
        assert not gateway.done.done()
        gateway.scheduler.hold.set()
        assert (await whole).json()["choices"][0]["message"]["content"] == "The answer is 29."
        assert (await stream).text.endswith("data: [DONE]\n\n")
        async with asyncio.timeout(LIMIT_S):
            await gateway.done
    reports = [line for line in lines if line["event"] == "draining"]
    assert reports[0]["left_s"] >= reports[1]["left_s"]


@OWN_CELL
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_exceeds_the_drain_time_gets_an_error_and_is_cancelled(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, stream: bool
) -> None:
    scheduler.hold = asyncio.Event()
    async with ready(msgspec.structs.replace(settings, drain_timeout_s=0.1), text) as gateway:
        sent = asyncio.create_task(gateway.http.post(PATH, json=CHAT | {"stream": stream}))
        request_id = await scheduler.received()
        gateway.stop.set()
        reply = await sent
        last = reply.text.strip().split("\n\n")[-1].removeprefix("data: ")
        assert json.loads(last)["error"]["message"] == "the gateway is shutting down"
        assert stream or (reply.status_code, "retry-after" in reply.headers) == (503, True)
        async with asyncio.timeout(LIMIT_S):
            await gateway.done
            assert await scheduler.cancelled.get() == request_id


@OWN_CELL
async def test_metrics_count_requests_tokens_and_first_text(gateway: RunningGateway) -> None:
    await gateway.http.post(PATH, json=CHAT)
    await gateway.http.post(PATH, json=CHAT | {"stream": True})
    await gateway.http.post(PATH, json=CHAT | {"n": 0})
    metrics = (await gateway.http.get("/metrics")).text
    name = "dilaserve_gateway"
    assert f'{name}_requests_total{{outcome="completed"}} 2.0' in metrics
    assert f'{name}_requests_total{{outcome="rejected"}} 1.0' in metrics
    assert f'{name}_tokens_total{{kind="completion"}} 34.0' in metrics
    assert f"{name}_latency_seconds_count 2.0" in metrics
    assert f"{name}_first_text_seconds_count 1.0" in metrics


@OWN_CELL
async def test_a_request_that_was_lost_with_its_stream_ends_with_an_error(
    bus: Bus, settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.bus_connection.PROBE_S", 0.2)
    scheduler.hold = asyncio.Event()
    async with ready(settings, text) as gateway:
        known = asyncio.create_task(gateway.http.post(PATH, json=CHAT))
        await scheduler.received()
        lost = asyncio.create_task(gateway.http.post(PATH, json=CHAT))
        await scheduler.received()
        scheduler.requests.pop()  # as if the scheduler had not received it
        await bus.js.delete_stream(bus.subjects.stream("REQUESTS"))
        await bus.set_up()
        reply = await lost
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
        assert reply.json()["error"]["message"] == "the bus has lost the request: send it again"
        scheduler.hold.set()
        assert (await known).status_code == 200


@OWN_CELL
async def test_a_connection_whose_start_is_cancelled_can_be_closed(settings: GatewaySettings) -> None:
    before, connection = asyncio.all_tasks(), BusConnection()
    connecting = asyncio.create_task(connection.connect(settings))

    def is_measuring() -> bool:
        try:
            _ = connection.watch
        except RetryLater:
            return False
        return True

    async with asyncio.timeout(LIMIT_S):
        while not is_measuring():  # noqa: ASYNC110  (the measurement takes about a millisecond)
            await asyncio.sleep(0)
    await cancel([connecting])
    await connection.close()
    await reached(lambda: asyncio.all_tasks() <= before)


async def test_readiness_takes_no_message_of_the_bus(gateway: RunningGateway) -> None:
    await gateway.until("ready")  # its loop stood still during the tests with a cell of their own
    bus = gateway.scheduler.bus
    probes = bus.subjects.stream("PROBES")
    before = (await bus.js.stream_info(probes)).state.last_seq
    for _ in range(20):
        assert await gateway.readiness() == "ready"
    after = (await bus.js.stream_info(probes)).state.last_seq
    assert after <= before + 1  # one probe may have been running
