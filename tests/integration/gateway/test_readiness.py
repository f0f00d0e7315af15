"""`/ready`, the console and the metrics report whether requests can be served."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.gateway import bus_connection, readiness, ready_reasons
from services.gateway.settings import GatewaySettings
from shared.bus import client
from shared.bus.client import Bus
from shared.messages.requests import Request
from shared.text import TextModel
from tests.builders import scheduler_stats
from tests.support.gateway import CHAT, RunningGateway, running
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import eventually

PATH = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def frequent_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_connection, "PROBE_S", 0.1)


async def limit(bus: Bus, stream: str, max_bytes: int) -> None:
    info = await bus.js.stream_info(stream)
    await bus.js.update_stream(info.config.evolve(max_bytes=max_bytes))


async def becomes(gateway: RunningGateway, part: str) -> None:
    """Wait until `/ready` gives a reason that contains `part`."""
    await eventually(gateway.readiness, lambda found: part in found)


async def test_a_silent_scheduler_ends_readiness_and_requests_still_wait_for_the_next_one(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "STATS_TIMEOUT_S", 0.0)
    await gateway.until("no scheduler leads")
    assert (await gateway.http.get("/cluster")).json()["reason"] == "no scheduler leads"
    await gateway.metric('dilaserve_gateway_not_ready{reason="scheduler"} 1.0')
    assert (await gateway.http.post(PATH, json=CHAT)).status_code == 200
    monkeypatch.undo()
    await gateway.until("ready")
    await gateway.metric('dilaserve_gateway_not_ready{reason="scheduler"} 0.0')


async def test_a_request_that_is_not_stored_ends_readiness_until_one_is(
    gateway: RunningGateway, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STORE_S", 0.1)
    config = (await bus.js.stream_info(bus.subjects.stream("REQUESTS"))).config
    await bus.js.update_stream(config.evolve(subjects=["elsewhere"]))  # no stream answers
    failed = await gateway.http.post(PATH, json=CHAT)
    assert failed.status_code == 503
    await becomes(gateway, "the bus stores no message: cannot store on")
    await bus.js.update_stream(config)
    assert (await gateway.http.post(PATH, json=CHAT)).status_code == 200
    await gateway.until("ready")


async def test_a_scheduler_in_a_crash_loop_ends_readiness(gateway: RunningGateway) -> None:
    async def policy_of_leader() -> Any:
        return (await gateway.http.get("/cluster")).json()["policy"]

    for epoch in range(2, 6):
        gateway.scheduler.stats = scheduler_stats(epoch=epoch, policy=f"of epoch {epoch}")
        await eventually(policy_of_leader, lambda found: found == gateway.scheduler.stats.policy)
    await becomes(gateway, "times in the last 60 s")


async def test_requests_that_the_scheduler_never_receives_end_readiness(
    lonely_gateway: RunningGateway, scheduler: AnsweringScheduler, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_reasons, "UNRECEIVED_S", 0.1)
    scheduler.hold, scheduler.stats = asyncio.Event(), scheduler_stats(active=0)
    await bus.store(bus.subjects.requests, Request(request_id="r1", prompt="x"))
    await becomes(lonely_gateway, "that the scheduler does not have")
    scheduler.hold.set()
    await lonely_gateway.until("ready")


async def test_full_outcomes_refuse_requests_with_503_and_the_reason(gateway: RunningGateway, bus: Bus) -> None:
    assert (await gateway.http.post(PATH, json=CHAT)).status_code == 200
    stream = bus.subjects.stream("OUTCOMES")
    used = (await bus.js.stream_info(stream)).state.bytes
    await limit(bus, stream, used + 1)
    await becomes(gateway, "of outcomes, of at most")
    refused = await gateway.http.post(PATH, json=CHAT)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    assert refused.json()["error"]["code"] == "storage_full"
    assert "of outcomes, of at most" in refused.json()["error"]["message"]
    await gateway.metric('dilaserve_gateway_not_ready{reason="full"} 1.0')
    await limit(bus, stream, 100 * used)
    await gateway.until("ready")
    assert (await gateway.http.post(PATH, json=CHAT)).status_code == 200


@pytest.mark.parametrize("is_seen", [True, False], ids=["a probe has seen it", "before a probe"])
async def test_requests_beyond_the_most_of_the_cell_get_503_and_the_reason(
    gateway: RunningGateway, bus: Bus, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    await gateway.until("ready")
    if not is_seen:
        monkeypatch.setattr(ready_reasons, "FULL_SHARE", 2.0)  # a probe sees no full stream
    stream = bus.subjects.stream("REQUESTS")
    await bus.js.update_stream((await bus.js.stream_info(stream)).config.evolve(max_msgs=1))
    async with gateway.scheduler.withholding(gateway.http.post(PATH, json=CHAT)):
        if is_seen:
            await becomes(gateway, "the bus stores 1 unfinished requests, of at most 1")
        refused = await gateway.http.post(PATH, json=CHAT)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["error"]["code"] == "storage_full"
        assert "the bus stores" in refused.json()["error"]["message"]
    await gateway.until("ready")
    assert (await gateway.http.post(PATH, json=CHAT)).status_code == 200


async def test_full_claims_or_files_refuse_their_own_requests_so_readiness_stays(
    gateway: RunningGateway, bus: Bus
) -> None:
    await limit(bus, f"KV_{bus.subjects.claims_bucket}", 10)
    await limit(bus, f"OBJ_{bus.subjects.files_store}", 10)
    upload = {"file": ("x.jsonl", b"{}\n")}
    for refused in (
        await gateway.http.post(PATH, json=CHAT, headers={"Idempotency-Key": "new"}),
        await gateway.http.post("/v1/files", files=upload, data={"purpose": "batch"}),
    ):
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["error"]["code"] == "storage_full"
    assert (await gateway.http.post(PATH, json=CHAT)).status_code == 200
    assert await gateway.readiness() == "ready"


async def test_a_bus_that_stores_nothing_ends_readiness(gateway: RunningGateway, bus: Bus) -> None:
    await bus.js.delete_stream(bus.subjects.stream("PROBES"))
    await becomes(gateway, "the bus stores no message: cannot store a probe")
    await bus.set_up()
    await gateway.until("ready")


async def test_too_little_free_disk_ends_readiness(
    settings: GatewaySettings,
    text: TextModel,
    scheduler: AnsweringScheduler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(replace(settings, bus_store_dir=str(tmp_path)), text) as gateway:
        await gateway.until("ready")
        monkeypatch.setattr(ready_reasons, "MIN_FREE_BYTES", 1 << 60)
        await becomes(gateway, "the disk of the bus has")
