"""Observes a running cluster: gateway readiness, instances, scheduler statistics."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
import nats.errors
from nats.js.errors import KeyNotFoundError

from dilaserve.stack.probes import check_answers, nats_answers, not_ready_reason
from shared.bus.client import Bus, try_decode
from shared.bus.codec import decode
from shared.messages.instances import Instance
from shared.messages.stats import STATS_S, SchedulerStats
from shared.settings import check_nats_url
from shared.urls import without_credentials

ANSWER_TIMEOUT_S = 2 * STATS_S  # for the scheduler and the bus


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """`dilaserve status --json`."""

    url: str
    ready: bool
    reason: str | None  # why it is not ready
    instances: list[Instance]
    scheduler: SchedulerStats | None  # None: no scheduler leads


async def cluster_reports(
    url: str, nats_url: str, cell: str, certificate: str = "", nats_ca: str = ""
) -> AsyncGenerator[ClusterReport]:
    """Yields: the cluster's state, again and again over one connection, each with the scheduler's next statistics.

    `certificate`: as `not_ready_reason`; `nats_ca`: as `bus_client`. Raises: as `open_bus`.
    """
    async with open_bus(nats_url, nats_ca, cell, "status") as bus:
        published = await bus.nc.subscribe(bus.subjects.stats("scheduler"))
        while True:
            while published.pending_msgs:  # since the last report: the scheduler may have ended meanwhile
                await published.next_msg()
            stats = None
            with suppress(TimeoutError):
                stats = try_decode(await published.next_msg(ANSWER_TIMEOUT_S), SchedulerStats)
            reason, instances = await not_ready_reason(url, certificate), await _instances(bus)
            yield ClusterReport(url=url, ready=reason is None, reason=reason, instances=instances, scheduler=stats)


async def _instances(bus: Bus) -> list[Instance]:
    """The registered instances, by id; none while the bus is unavailable."""
    found = []
    with suppress(nats.errors.Error, TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            bucket = await bus.js.key_value(bus.subjects.instances_bucket)
            for key in sorted(await bucket.keys()):
                with suppress(KeyNotFoundError):  # deregistered meanwhile
                    found.append(decode((await bucket.get(key)).value or b"", Instance))
    return found


@asynccontextmanager
async def open_bus(nats_url: str, nats_ca: str, cell: str, name: str) -> AsyncIterator[Bus]:
    """Connect to the bus at --nats-url. Raises: BadInput if the URL is invalid or NATS does not answer."""
    check_nats_url(nats_url, "--nats-url")
    await check_answers(partial(nats_answers, ca=nats_ca), nats_url, f"NATS at {without_credentials(nats_url)}")
    async with await Bus.connect(nats_url, cell, name=name, ca=nats_ca) as bus:
        yield bus
