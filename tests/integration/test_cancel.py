"""A request whose client disconnects ends at the gateway, in the scheduler and on the instance."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
from nats.aio.msg import Msg

from services.gateway.settings import GatewaySettings
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.self_check import Canary, CanaryCheck
from services.worker.io.registration import Registration
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.monitoring.metrics import WorkerMetrics
from services.worker.service import WorkerService
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.messages.instances import Instance
from shared.messages.stats import SchedulerStats
from shared.model_files import read_model_card
from shared.text import TextModel
from tests.support.gateway import ready
from tests.support.nats import NatsServer
from tests.support.services import service
from tests.support.waiting import reached

CACHE_TOKENS = 2048
REQUESTS = 3


def long_body(model: str, number: int) -> dict[str, Any]:
    """A request of several hundred steps: at threshold 1, nearly every step unmasks one token."""
    message = {"role": "user", "content": f"How many pears has number {number}?"}
    return {"model": model, "messages": [message], "max_tokens": 448, "min_threshold": 1.0, "stream": True}


async def test_requests_of_disconnected_clients_leave_nothing_behind(
    bus: Bus, nats_server: NatsServer, tiny_checkpoint_dir: Path, tmp_path: Path
) -> None:
    name = tiny_checkpoint_dir.name
    common = {"nats_url": nats_server.url, "cell": bus.subjects.cell, "model": str(tiny_checkpoint_dir)}
    card = read_model_card(tiny_checkpoint_dir, name)
    instance = Instance(instance_id="w-1", model=card, tp_degree=1)
    scheduling = {**common, "policy": "fixed", "cache": "dual", "stop_at_eos": False}
    received: asyncio.Queue[SchedulerStats] = asyncio.Queue()

    async def receive(msg: Msg) -> None:
        received.put_nowait(decode(msg.data, SchedulerStats))

    await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=receive)
    choice, room = ModelChoice(str(tiny_checkpoint_dir), threads=1), CacheSize(REQUESTS, CACHE_TOKENS)
    with open_runner(choice, room) as runner, service("scheduler", scheduling, tmp_path / "scheduler.log"):
        engine = Engine(runner, CacheMode.DUAL, EngineLimits(8192, 64), instance.instance_id)
        stop = asyncio.Event()
        working = asyncio.create_task(
            WorkerService(
                bus,
                engine,
                Registration(bus, instance),
                WorkerMetrics(instance),
                CanaryCheck(Canary.measure(runner), 1.0),
                iteration_limit_s=lambda _: 60.0,
            ).run(stop)
        )
        settings = msgspec.convert(common, GatewaySettings)
        async with ready(settings, TextModel(tiny_checkpoint_dir, name)) as gateway:
            await asyncio.gather(*(begin_and_disconnect(gateway.url, name, number) for number in range(REQUESTS)))
            await reached(lambda: engine.num_resident == 0 and not engine.waiting and not engine.used_cache_tokens)
            await gateway.metric("dilaserve_gateway_active_requests 0.0")
        while (stats := await received.get()).cancelled < REQUESTS:
            pass
        assert (stats.active, stats.steps_in_flight, stats.instances[0].requests, stats.instances[0].tokens) == (0,) * 4
        assert (await bus.js.stream_info(bus.subjects.stream("REQUESTS"))).state.messages == 0
        stop.set()
        await working


async def begin_and_disconnect(url: str, model: str, number: int) -> None:
    """Read a stream until it contains unmasked and provisional tokens, then disconnect."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json=long_body(model, number) | {"canvas": True}) as reply,
    ):
        seen: set[bool] = set()
        async for line in reply.aiter_lines():
            if "dilaserve.canvas" in line:
                seen |= {cell["committed"] for cell in json.loads(line.removeprefix("data: "))["cells"]}
            if len(seen) == 2:
                return
    raise AssertionError("the stream ended too early")
