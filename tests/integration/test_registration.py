"""An instance's entry in the instances bucket."""

from services.worker.io.registration import Registration
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.messages.instances import Instance
from tests.builders import instance


async def test_after_a_reconnect_the_entry_reports_another_connection(bus: Bus) -> None:
    registration = Registration(bus, instance("a-1"))
    bus.reconnects.subscribe(registration.count_connection)
    bucket = await bus.bucket(bus.subjects.instances_bucket)
    reported = []
    for _ in range(2):
        await registration.renew()
        reported.append(decode((await bucket.get("a-1")).value or b"", Instance).connections)
        bus.reconnects.report()
    assert reported == [1, 2]
