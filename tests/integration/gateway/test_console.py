"""The console's page and the API that it reads."""

import json
import os
import re
import time
from typing import Any

import msgspec
import pytest

from services.gateway.app import DIRECTORY
from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.messages.health import ServiceHealth
from shared.messages.instances import Instance, ModelCard
from shared.messages.plans import PlanState, ReconfiguratorStats
from tests.builders import scheduler_stats
from tests.support.gateway import CHAT, ONE_CELL, OWN_CELL, RunningGateway
from tests.support.plans import plan
from tests.support.waiting import eventually, until

pytestmark = ONE_CELL

NOT_READY = "no scheduler leads; no instance is ready"
TYPES = {".js": "javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


async def ask(gateway: RunningGateway, **options: Any) -> str:
    """The id of a finished request."""
    reply = await gateway.http.post("/v1/chat/completions", json=CHAT | options)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["dilaserve"]["request_id"])


async def first_update(gateway: RunningGateway) -> dict[str, Any]:
    async with gateway.http.stream("GET", "/events") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        async for line in reply.aiter_lines():
            update: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return update
    raise AssertionError("no event")


async def test_the_page_and_its_files_are_served_with_their_types(lonely_gateway: RunningGateway) -> None:
    page = await lonely_gateway.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    linked = set(re.findall(r'(?:href|src)="(console/[^"]+)"', page.text))
    files = {f"console/{path.relative_to(DIRECTORY)}" for path in DIRECTORY.rglob("*") if path.suffix in TYPES}
    assert linked <= files
    for path in files:
        reply = await lonely_gateway.http.get(f"/{path}")
        assert reply.status_code == 200
        assert TYPES[path[path.rindex(".") :]] in reply.headers["content-type"]
        assert "default-src 'self'" in reply.headers["content-security-policy"]


async def test_only_the_consoles_files_are_served(lonely_gateway: RunningGateway) -> None:
    for path in ("/console/nothing.js", "/docs", "/redoc"):
        reply = await lonely_gateway.http.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found"), path


async def test_the_probes_accept_head_requests(lonely_gateway: RunningGateway) -> None:
    asked = [await lonely_gateway.http.head(path) for path in ("/", "/health", "/ready")]
    assert [(reply.status_code, reply.content) for reply in asked] == [(200, b""), (200, b""), (503, b"")]


async def test_the_cluster_lists_instances_by_node(gateway: RunningGateway) -> None:
    cluster = (await gateway.http.get("/cluster")).json()
    assert (cluster["model"], cluster["ready"], cluster["reason"]) == ("tiny-llada", True, None)
    [node] = cluster["nodes"]
    [instance] = node["instances"]
    assert (node["name"], instance["id"]) == ("local", "worker-test")
    assert (instance["state"], instance["tp_degree"]) == ("ready", 1)


async def test_the_cluster_reports_why_it_is_not_ready_and_no_load(lonely_gateway: RunningGateway) -> None:
    cluster = (await lonely_gateway.http.get("/cluster")).json()
    assert (cluster["ready"], cluster["reason"], cluster["nodes"]) == (False, NOT_READY, [])
    update = await first_update(lonely_gateway)
    assert update["cluster"]["policy"] is None
    assert {load["rps"] for load in update["loads"]} == {None}


async def test_the_cluster_lists_the_processes_of_its_services(gateway: RunningGateway) -> None:
    bus = gateway.scheduler.bus

    async def services() -> dict[str, str]:
        """The state of each service."""
        listed = (await gateway.http.get("/cluster")).json()["services"]
        return {each["service"]: each["state"] for each in listed}

    async def has_own() -> bool:
        return await services() == {"gateway": "running"}

    await until(has_own)
    [own] = (await gateway.http.get("/cluster")).json()["services"]
    assert own["process"].endswith(f":{os.getpid()}")
    assert own["memory_bytes"] > 1 << 20
    health = ServiceHealth(process="host:1", memory_bytes=5)
    await bus.publish(bus.subjects.health("scheduler"), health)
    await eventually(services, lambda found: found == {"gateway": "running", "scheduler": "standby"})
    await bus.publish(bus.subjects.health("scheduler"), msgspec.structs.replace(health, has_ended=True))
    await until(has_own)


@OWN_CELL
async def test_the_cluster_shows_memory_caches_and_the_storage_of_the_bus(bus: Bus, gateway: RunningGateway) -> None:
    sizes: dict[str, Any] = {"cache_tokens": 100, "used_cache_tokens": 25, "wanted_tokens": 10, "cached_tokens": 4}
    card = ModelCard(name="tiny-llada", max_length=512, mask_token_id=1, eos_token_id=2, vocab_size=100)
    other = Instance(instance_id="caching", model=card, tp_degree=1, memory_bytes=3, max_memory_bytes=9, **sizes)
    await (await bus.bucket(bus.subjects.instances_bucket)).put(other.instance_id, encode(other))

    await eventually(
        lambda: first_update(gateway),
        lambda found: [found["loads"][-1][name] for name in ("kv_cache_use", "prefix_hit_rate")] == [0.25, 0.4],
    )
    cluster = (await gateway.http.get("/cluster")).json()
    [shown] = [each for each in cluster["nodes"][0]["instances"] if each["id"] == "caching"]
    assert (shown["memory_bytes"], shown["max_memory_bytes"]) == (3, 9)
    assert (shown["cache_tokens"], shown["max_cache_tokens"]) == (25, 100)
    assert cluster["storage"]["problem"] is None
    assert {"REQUESTS", "OUTCOMES"} <= {stream["name"] for stream in cluster["storage"]["streams"]}


async def test_updates_count_requests_and_contain_the_cluster(gateway: RunningGateway) -> None:
    before = (await first_update(gateway))["ended"]
    await ask(gateway)
    update = await eventually(lambda: first_update(gateway), lambda found: found["ended"] > before)
    assert update["ended"] == before + 1
    assert update["cluster"]["nodes"][0]["instances"][0]["id"] == "worker-test"


@OWN_CELL
async def test_event_streams_end_when_the_gateway_drains(gateway: RunningGateway) -> None:
    async with gateway.http.stream("GET", "/events") as reply:
        lines = reply.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        gateway.stop.set()
        async for line in lines:  # until the stream ends without an error
            assert line.startswith("data: ") or not line
    await gateway.done


@OWN_CELL
async def test_plans_are_reported_with_their_reasons_and_whether_a_reconfigurator_runs(
    bus: Bus, lonely_gateway: RunningGateway
) -> None:
    async def reported() -> Any:
        return (await lonely_gateway.http.get("/plans")).json()

    assert await reported() == {"object": "list", "data": [], "reconfigurator": None}
    await bus.store(bus.subjects.plans("plan-1"), plan(PlanState.DONE, "the load has grown", "stopped it"))
    [record] = (await reported())["data"]
    assert (record["state"], record["reason"]) == ("done", "the load has grown")
    assert record["before"] == [{"node": "local", "gpus": [0, 1]}]
    assert [place["gpus"] for place in record["target"]] == [[0], [1]]
    assert [event["text"] for event in record["events"]] == ["stopped it"]
    stats = ReconfiguratorStats(changes_instances=False, interval_s=300.0)
    while (await reported())["reconfigurator"] is None:  # a message may be sent before the gateway subscribes
        await bus.publish(bus.subjects.stats("reconfigurator"), stats)
    assert (await reported())["reconfigurator"] == {"changes_instances": False, "interval_s": 300.0}


@OWN_CELL
async def test_the_load_is_that_of_the_schedulers_stats(gateway: RunningGateway) -> None:
    gateway.scheduler.stats = scheduler_stats(rps=3.0, active=5, deferred=2, waiting=7)
    update = await eventually(
        lambda: first_update(gateway), lambda found: found["loads"][-1]["rps"] == 3.0 and found["cluster"]["nodes"]
    )
    load = update["loads"][-1]
    assert (load["rps"], load["running"], load["waiting"]) == (3.0, 3, 2 + 7)
    assert update["cluster"]["policy"] == "dilaserve"
    [instance] = update["cluster"]["nodes"][0]["instances"]
    assert (instance["requests"], instance["tokens"], instance["step_latency_ms"]) == (4, 300, 12.0)


@OWN_CELL
async def test_loads_are_sent_after_the_machines_clock_is_set_back(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (await first_update(gateway))["loads"][-1]["t_s"]
    unix_s = time.time
    monkeypatch.setattr(time, "time", lambda: unix_s() - 3600)
    await eventually(lambda: first_update(gateway), lambda found: found["loads"][-1]["t_s"] > before)
