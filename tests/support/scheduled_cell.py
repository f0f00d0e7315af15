"""A scheduler process and scripted instances on one cell of a real bus, and the fixture of such a cell."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.bus.subjects import step_consumer
from shared.messages.instances import Instance
from shared.messages.requests import Outcome, Request
from shared.messages.steps import StepJobs
from shared.model_files import read_model_card
from shared.tasks import during
from tests.support.nats import NatsServer
from tests.support.scripted_worker import ScriptedWorker

LIMIT_S = 20.0
MODEL_NAME = "tiny"
LOG = "scheduler.log"


class Cluster:
    """A scheduler process and scripted instances on one cell."""

    def __init__(self, bus: Bus, model: Path, directory: Path, url: str) -> None:
        self.bus = bus
        self.model = model
        self.log = directory / LOG
        self.settings = {"nats_url": url, "cell": bus.subjects.cell, "model": model, "model_name": MODEL_NAME}
        self.settings["policy"] = "fixed"  # its instances have no profile

    @asynccontextmanager
    async def registered(self, name: str, per_step: int = 4) -> AsyncIterator[ScriptedWorker]:
        """An instance's registration during the body, and a worker that the test lets answer."""
        card = read_model_card(self.model, MODEL_NAME)
        bucket = await self.bus.bucket(self.bus.subjects.instances_bucket)
        registration = encode(Instance(instance_id=name, model=card, tp_degree=1))

        async def renew() -> None:
            while True:
                await bucket.put(name, registration)
                await asyncio.sleep(1.0)

        async with during(renew()):
            yield ScriptedWorker(name, per_step, mask_id=card.mask_token_id)
        await bucket.delete(name)

    @asynccontextmanager
    async def instance(self, name: str = "w-1", per_step: int = 4) -> AsyncIterator[ScriptedWorker]:
        """One that answers at once."""
        steps = self.bus.subjects.stream("STEPS"), step_consumer(self.bus.subjects, name)
        async with self.registered(name, per_step) as worker:

            async def answer(msg: Msg) -> None:
                await msg.ack()
                for results in worker.run_each(decode(msg.data, StepJobs)):
                    await self.bus.publish(self.bus.subjects.step_results(name), results)

            async with during(self.bus.run_consumer(*steps, answer)):
                yield worker

    async def outcome(self, request: Request) -> Outcome:
        """Publish a request and wait for its outcome."""
        subscription = await self.bus.nc.subscribe(self.bus.subjects.outcomes(request.request_id))
        await self.bus.store(self.bus.subjects.requests, request)
        msg = await subscription.next_msg(timeout=LIMIT_S)
        await subscription.unsubscribe()
        return decode(msg.data, Outcome)

    async def all_acknowledged(self) -> bool:
        return (await self.bus.js.stream_info(self.bus.subjects.stream("REQUESTS"))).state.messages == 0


@pytest.fixture
def cluster(bus: Bus, tiny_model_dir: Path, tmp_path: Path, nats_server: NatsServer) -> Cluster:
    """A cell without a scheduler, for one test."""
    return Cluster(bus, tiny_model_dir, tmp_path, nats_server.url)
