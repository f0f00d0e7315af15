"""Messages that the bus counts as delivered and the scheduler does not have, as after the loss of a server."""

import asyncio

import msgspec
import pytest
from nats.aio.msg import Msg

from services.scheduler.io.delivery_watch import Check, DeliveryWatch, shows_loss
from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.bus.subjects import request_consumer
from shared.bus.watch import Look
from shared.messages.requests import OutcomeStatus, Request
from shared.text import TextModel
from tests.support.intake import Intake, receiving
from tests.support.waiting import LIMIT_S, reached

BACKLOG_S = 60.0


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


async def test_a_backlog_that_takes_longer_to_receive_than_the_checks_is_no_loss(bus: Bus, text: TextModel) -> None:
    backlog = 5_000
    for i in range(backlog):
        await bus.nc.publish(bus.subjects.requests, encode(Request(request_id=f"r-{i}", prompt="x")))
    await bus.nc.flush()
    async with receiving(bus, text, max_held=1) as intake:
        await reached(lambda: intake.consumer.num_waiting == backlog - 1, BACKLOG_S)
        [consumer] = await bus.js.consumers_info(bus.subjects.stream("REQUESTS"))
        assert consumer.delivered is not None
        assert consumer.delivered.consumer_seq == backlog  # no message was delivered twice


async def test_no_loss_is_noticed_while_the_consumer_is_created_again(bus: Bus) -> None:
    stream, config = bus.subjects.stream("REQUESTS"), request_consumer(1)
    watch = DeliveryWatch(bus, stream, str(config.durable_name), lambda _: False)
    watch.start(await bus.js.add_consumer(stream, config))
    for name in ("a", "b"):
        await bus.store(bus.subjects.requests, Request(request_id=name, prompt="x"))
    pulling = await bus.js.pull_subscribe_bind(str(config.durable_name), stream)
    _, second = [(await pulling.fetch(1))[0] for _ in range(2)]
    watch.note(second)  # the first one is lost
    watch.stop()
    await watch.check(Look())  # the old consumer is still there
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.wait_for_loss(), 0.01)
    await bus.js.delete_consumer(stream, str(config.durable_name))
    watch.start(await bus.js.add_consumer(stream, config))
    await watch.check(Look())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.wait_for_loss(), 0.01)


@pytest.mark.parametrize(
    ("before", "now", "is_loss"),
    [
        (Check(0, 5, 5, None), Check(2, 5, 5, None), False),
        (Check(0, 5, 4, None), Check(2, 5, 4, None), True),  # one was lost on its way
        (Check(0, 20_000, 4_000, None), Check(2, 20_000, 8_000, None), False),  # a backlog
        (Check(0, 5, 5, 3), Check(2, 9, 9, 3), True),  # an acknowledgement was lost
        (Check(0, 5, 5, 3), Check(2, 9, 9, 4), False),  # acknowledgements on their way
    ],
)
def test_two_checks_show_a_loss_if_the_same_is_absent_in_both(before: Check, now: Check, is_loss: bool) -> None:
    assert shows_loss(before, now) == is_loss
