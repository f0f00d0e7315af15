"""Messages that the bus counts as delivered and the scheduler does not have, as after the loss of a server."""

from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

from shared.bus.client import Bus
from shared.bus.subjects import request_consumer
from shared.messages.requests import OutcomeStatus
from shared.text import TextModel
from tests.support.intake import Intake, receiving
from tests.support.waiting import LIMIT_S


@pytest.fixture(scope="module")
def text(tiny_model_dir: Path) -> TextModel:
    return TextModel(tiny_model_dir, "tiny")


async def lose_one(intake: Intake, *request_ids: str) -> str:
    """Send the requests one after another until the bus has delivered one to another client. Returns: its id."""
    bus, lost = intake.bus, list[Msg]()

    async def receive(msg: Msg) -> None:
        lost.append(msg)

    inbox = bus.nc.new_inbox()
    await bus.nc.subscribe(inbox, cb=receive)
    pull = msgspec.json.encode({"batch": 1, "expires": int(LIMIT_S * 1e9)})
    stream, consumer = bus.subjects.stream("REQUESTS"), request_consumer(1).durable_name
    await bus.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", pull, reply=inbox)
    for request_id in request_ids:
        await intake.send(request_id)
        await bus.nc.flush()
        if lost:
            return request_id
    raise AssertionError("the scheduler received all")


async def test_a_request_that_the_bus_lost_on_the_way_is_delivered_again(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        await intake.send("first")
        first = await intake.arrived()
        lost = await lose_one(intake, *(f"r-{i}" for i in range(10)))
        received = [first]
        while received[-1].request.request_id != lost:
            received.append(await intake.arrived())
        for arrived in received:
            intake.finish(arrived)
        await intake.until_unfinished(0)
        assert await intake.status(lost) is OutcomeStatus.COMPLETED
        assert intake.totals.arrived == len(received)


async def test_a_message_of_a_finished_request_does_not_stay_in_the_stream(bus: Bus, text: TextModel) -> None:
    """So it is after the bus has lost an acknowledgement."""
    async with receiving(bus, text) as intake:
        for name in ("r", "other"):
            await intake.send(name)
            intake.finish(await intake.arrived())
        await intake.until_unfinished(0)
        await lose_one(intake, *["r", "other"] * 5)
        await intake.until_unfinished(0)
        assert intake.totals.arrived == 2
