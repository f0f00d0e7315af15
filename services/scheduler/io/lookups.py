"""Answers gateways' queries about unfinished requests."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from msgspec.structs import replace
from nats.aio.msg import Msg

from services.scheduler.core import SchedulerCore
from services.scheduler.io.request_consumer import RequestConsumer
from services.scheduler.io.waiting_requests import ReceivedRequest
from services.scheduler.state.request_table import NOWHERE
from shared.bus.client import Bus, try_decode
from shared.bus.subjects import name_in
from shared.messages.requests import ActiveRequest, UnfinishedQuery, UnfinishedRequests

MAX_LISTED = 500  # requests in one answer
MAX_SEARCHED = 20_000  # requests compared with one query, which takes a few milliseconds


class Lookups:
    def __init__(self, bus: Bus, requests: RequestConsumer, core: SchedulerCore) -> None:
        self._bus = bus
        self._requests = requests
        self._core = core

    async def subscribe(self) -> None:
        """Answer from now on."""
        await self._bus.nc.subscribe(self._bus.subjects.lookup(">"), cb=self._look_up)
        await self._bus.nc.subscribe(self._bus.subjects.unfinished, cb=self._list)

    async def _look_up(self, msg: Msg) -> None:
        if not msg.reply:
            return
        waiting = self._requests.find(name_in(msg.subject))
        found = active_request(waiting, self._core) if waiting else ActiveRequest(is_known=False)
        await self._bus.publish(msg.reply, found)

    async def _list(self, msg: Msg) -> None:
        query = try_decode(msg, UnfinishedQuery) if msg.reply else None
        if query is None:
            return
        searched = list(islice(self._requests.unfinished(), MAX_SEARCHED + 1))
        found = list(islice(matching_requests(query, searched[:MAX_SEARCHED], self._core), MAX_LISTED + 1))
        is_whole = len(found) <= MAX_LISTED and len(searched) <= MAX_SEARCHED
        await self._bus.publish(msg.reply, UnfinishedRequests(requests=found[:MAX_LISTED], is_whole=is_whole))


def active_request(received: ReceivedRequest, core: SchedulerCore) -> ActiveRequest:
    """The request as received, and if the core has it, its steps, instance and unmasked tokens so far."""
    arrival, table = received.arrival, core.table
    known = ActiveRequest(
        is_known=True,
        request_id=received.request_id,
        key=received.key,
        arrival_s=arrival.arrival_s,
        slo_s=arrival.slo_s,
        priority=received.priority,
        output_tokens=arrival.output_tokens,
    )
    row = table.row_of.get(received.request_id)
    if row is None:
        return known
    unmasked, instance = int(table.free_tokens[row] - table.masks_left[row]), int(table.instance[row])
    return replace(
        known,
        output_tokens=int(table.free_tokens[row]),
        unmasked_tokens=unmasked,
        instance="" if instance == NOWHERE else core.fleet.instance_id(instance),
        steps=int(table.steps[row]),
        migrations=int(table.migrations[row]),
        mean_threshold=float(table.threshold_tokens[row]) / unmasked if unmasked else None,
        trace_id=table.entry(row).arrived.trace_id,
    )


def matching_requests(
    query: UnfinishedQuery, received: Iterable[ReceivedRequest], core: SchedulerCore
) -> Iterator[ActiveRequest]:
    """The requests that match the query, in order. Reads the rows of these only, as there may be many others."""
    on_instance = _requests_on(query.instance, core) if query.instance else None
    for each in received:
        is_on_instance = on_instance is None or each.request_id in on_instance
        if is_on_instance and query.key in (None, each.key) and query.id_part in each.request_id:
            yield active_request(each, core)


def _requests_on(instance: str, core: SchedulerCore) -> set[str]:
    """The ids of the requests whose next step the instance runs."""
    table, index = core.table, core.fleet.index_of.get(instance)
    if index is None:
        return set()
    rows = np.flatnonzero((table.ticket != 0) & (table.instance == index))
    return {table.entry(row).request_id for row in rows.tolist()}
