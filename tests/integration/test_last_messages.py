"""The last messages of many subjects, read together."""

import asyncio

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.last_messages import MAX_SUBJECTS, LastMessages
from shared.messages.requests import Outcome, OutcomeStatus


async def test_each_read_gets_the_last_message_of_its_subject_or_none(bus: Bus) -> None:
    subject, count = bus.subjects.outcomes, MAX_SUBJECTS + 10
    for text in ("first", "last"):
        outcomes = (Outcome(request_id=f"r{i}", status=OutcomeStatus.COMPLETED, text=text) for i in range(0, count, 2))
        await asyncio.gather(*(bus.store(subject(each.request_id), each) for each in outcomes))
    messages = LastMessages(bus, bus.subjects.stream("OUTCOMES"))
    found = await asyncio.gather(*(messages.read(subject(f"r{i}")) for i in range(count)))
    assert [each is not None for each in found] == [i % 2 == 0 for i in range(count)]
    texts = {i: decode(each.data or b"", Outcome).text for i, each in enumerate(found) if each is not None}
    assert texts == dict.fromkeys(range(0, count, 2), "last")
    assert (await messages.read(subject("r0"))) == found[0]  # a later read


async def test_a_cancelled_read_does_not_disturb_the_others(bus: Bus) -> None:
    name = bus.subjects.outcomes("r0")
    await bus.store(name, Outcome(request_id="r0", status=OutcomeStatus.COMPLETED))
    messages = LastMessages(bus, bus.subjects.stream("OUTCOMES"))
    first, second = (asyncio.create_task(messages.read(name)) for _ in range(2))
    await asyncio.sleep(0)  # both have asked
    first.cancel()
    assert await second is not None
    assert first.cancelled()


async def test_messages_that_exceed_one_reply_are_all_read(bus: Bus) -> None:
    size, count = 700_000, 100  # together more than the server sends in one reply
    names = [bus.subjects.outcomes(f"r{i}") for i in range(count)]
    for name in names:
        await bus.js.publish(name, bytes(size))
    messages = LastMessages(bus, bus.subjects.stream("OUTCOMES"))
    found = await asyncio.gather(*(messages.read(name) for name in names))
    assert [len(each.data or b"") if each else 0 for each in found] == [size] * count
