"""Reads of streams whose messages are replaced meanwhile."""

import asyncio
from itertools import cycle

from shared.bus.client import Bus
from shared.bus.stream_reader import read_last
from shared.tasks import cancel, pause

RECORDS, READS = 100, 20


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

    replacing = asyncio.ensure_future(replace())
    try:
        for _ in range(READS):
            before = replaced
            read = await read_last(bus, f"KV_{bus.subjects.batches_bucket}", f"$KV.{bus.subjects.batches_bucket}.>")
            assert len({msg.subject for msg in read}) == RECORDS
            assert replaced > before
    finally:
        await cancel([replacing])
