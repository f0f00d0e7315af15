"""The leader's lease, on the real bus."""

import asyncio

import pytest
from nats.js.errors import NotFoundError

from services.scheduler.io.lease import KEY, Lease
from shared.bus.client import Bus
from shared.errors import Superseded
from shared.tasks import cancel
from tests.support.waiting import LIMIT_S, until


async def expire(bus: Bus) -> None:
    """As if the bus had been unavailable."""
    await bus.js.purge_stream(f"KV_{bus.subjects.leases_bucket}")


async def test_an_expired_lease_is_renewed_if_there_was_no_other_leader(bus: Bus) -> None:
    lease = await Lease.acquire(bus, "first")
    await expire(bus)
    bucket = await bus.bucket(bus.subjects.leases_bucket)

    async def is_held() -> bool:
        try:
            return (await bucket.get(KEY)).value == b"first"
        except NotFoundError:
            return False

    holding = asyncio.ensure_future(lease.hold())
    try:
        await until(is_held)
    finally:
        await cancel([holding])
    await lease.release()
    assert (await Lease.acquire(bus, "second")).epoch > lease.epoch


@pytest.mark.parametrize("still_leads", [False, True])
async def test_a_leader_is_superseded_if_another_scheduler_has_led(bus: Bus, *, still_leads: bool) -> None:
    lease = await Lease.acquire(bus, "first")
    await expire(bus)
    second = await Lease.acquire(bus, "second")
    if not still_leads:
        await second.release()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(Superseded):
            await lease.hold()
        if not still_leads:
            await Lease.acquire(bus, "third")


async def test_a_leader_whose_renewal_was_stored_without_an_answer_still_leads(bus: Bus) -> None:
    lease = await Lease.acquire(bus, "first")
    bucket = await bus.bucket(bus.subjects.leases_bucket)
    stored = await bucket.update(KEY, b"first", last=lease.epoch)

    async def is_renewed() -> bool:
        return ((await bucket.get(KEY)).revision or 0) > stored

    holding = asyncio.ensure_future(lease.hold())
    try:
        await until(is_renewed)
    finally:
        await cancel([holding])
