"""The events of instances, and the rejection of instances that cannot serve."""

from typing import cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from services.scheduler.events import InstanceLost, InstanceQuarantined, InstanceUpdated
from services.scheduler.io.event_queue import EventQueue
from services.scheduler.io.instance_events import InstanceEvents
from shared.bus.codec import encode
from shared.messages.instances import Instance, InstanceState
from tests.builders import instance


def reporting(*, needs_profile: bool = False, caching: bool = False) -> tuple[InstanceEvents, EventQueue]:
    """The events of instances, and the queue to which they are reported."""
    events, queue = InstanceEvents("m", needs_profile=needs_profile, caching=caching), EventQueue()
    events.report_to(queue)
    return events, queue


async def receive(events: InstanceEvents, heartbeat: Instance) -> None:
    subject = f"$KV.instances-c.{heartbeat.instance_id}"
    await events.watch.receive(Msg(cast("Client", None), subject=subject, data=encode(heartbeat)))


async def delete(events: InstanceEvents, instance_id: str) -> None:
    await events.watch.receive(Msg(cast("Client", None), subject=f"$KV.instances-c.{instance_id}", data=b""))


@pytest.mark.parametrize(("caching", "cache_tokens", "warnings"), [(False, 512, 1), (True, 512, 0), (False, 0, 0)])
async def test_an_unused_cache_is_logged_once(*, caching: bool, cache_tokens: int, warnings: int) -> None:
    events, _ = reporting(caching=caching)
    with capture_logs() as logs:
        for state in (InstanceState.READY, InstanceState.DRAINING):
            await receive(events, instance(state=state, cache_tokens=cache_tokens))
    assert [line["log_level"] for line in logs].count("warning") == warnings


async def test_an_instance_without_a_profile_is_rejected_if_the_policy_needs_one() -> None:
    for needs_profile in (False, True):
        events, queue = reporting(needs_profile=needs_profile)
        await receive(events, instance())
        updated = [event for event in await queue.get_all(0.0) if isinstance(event, InstanceUpdated)]
        assert bool(updated) is not needs_profile


async def test_a_starting_instance_is_not_reported() -> None:
    events, queue = reporting()
    await receive(events, instance(state=InstanceState.STARTING))
    assert await queue.get_all(0.0) == []


async def test_a_quarantined_instance_is_reported_once_and_then_absent() -> None:
    events, queue = reporting()
    reported: list[Instance] = []
    events.on_quarantine = reported.append
    await receive(events, instance())
    for _ in range(3):
        await receive(events, instance(state=InstanceState.QUARANTINED, quarantine="garbage", unverified_s=3.0))
    _, *found = await queue.get_all(0.0)
    assert found == [InstanceQuarantined("w-1"), InstanceLost("w-1")]
    assert [each.quarantine for each in reported] == ["garbage"]
    assert events.watch.instances() == []


async def test_a_scheduler_that_was_on_standby_knows_the_present_instances() -> None:
    queue = EventQueue()
    events = InstanceEvents("m", needs_profile=False, caching=False)
    for instance_id in ("lost-1", "draining-1", "kept-1"):
        await receive(events, instance(instance_id))
    await receive(events, instance("draining-1", state=InstanceState.DRAINING))
    await delete(events, "lost-1")
    events.report_to(queue)
    await receive(events, instance("new-1"))
    await delete(events, "kept-1")
    reported = [
        event.instance_id
        if isinstance(event, InstanceLost)
        else (event.instance.instance_id, event.instance.state.value)
        for event in await queue.get_all(0.0)
        if isinstance(event, InstanceUpdated | InstanceLost)
    ]
    assert reported == [("draining-1", "draining"), ("kept-1", "ready"), ("new-1", "ready"), "kept-1"]
