"""Reads of streams: records replaced meanwhile, the last messages of many subjects, decisions."""

import asyncio
from itertools import cycle

from services.scheduler.io.recovery import MAX_SUBJECTS, LastMessages
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.plan_history import read_plans
from shared.bus.stream_reader import read_last
from shared.messages.plans import PlanRecord, PlanState
from shared.messages.requests import Outcome, OutcomeStatus
from shared.tasks import during, pause

RECORDS, READS = 100, 10


async def test_no_record_is_missed_that_is_replaced_during_the_read(bus: Bus) -> None:
    bucket = await bus.bucket(bus.subjects.batches_bucket)
    names = [f"batch-{i}" for i in range(RECORDS)]
    await asyncio.gather(*(bucket.put(name, b"first") for name in names))
    later, replaced = cycle(names), 0

    async def replace() -> None:
        nonlocal replaced
        while True:
            await asyncio.gather(*(bucket.put(next(later), b"later") for _ in range(20)))
            replaced += 1
            await pause(0)

    async with during(replace()):
        for _ in range(READS):
            before = replaced
            read = await read_last(bus, f"KV_{bus.subjects.batches_bucket}", f"$KV.{bus.subjects.batches_bucket}.>")
            assert len({msg.subject for msg in read}) == RECORDS
            assert replaced > before


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


def record(number: int, state: PlanState = PlanState.STAYED) -> PlanRecord:
    return PlanRecord(plan_id=f"plan-{number}", decided_s=float(number), state=state, reason="a test")


async def test_plans_are_listed_newest_first_in_their_last_state(bus: Bus) -> None:
    assert await read_plans(bus, 10) == []
    for number in range(4):
        await bus.store(bus.subjects.plans(f"plan-{number}"), record(number, PlanState.RUNNING))
    for number in (2, 0):
        await bus.store(bus.subjects.plans(f"plan-{number}"), record(number, PlanState.DONE))
    assert [(plan.plan_id, plan.state) for plan in await read_plans(bus, 10)] == [
        ("plan-3", PlanState.RUNNING),
        ("plan-2", PlanState.DONE),
        ("plan-1", PlanState.RUNNING),
        ("plan-0", PlanState.DONE),
    ]
    assert len(await read_plans(bus, 2)) == 2
    await bus.js.publish(bus.subjects.plans("plan-4"), b"of a version to come")
    assert len(await read_plans(bus, 10)) == 4  # it hides no other
