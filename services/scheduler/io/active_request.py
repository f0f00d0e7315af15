"""The state of requests that have no outcome yet, as gateways show it. Pure."""

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace

from services.scheduler.core import SchedulerCore
from services.scheduler.io.waiting_requests import ReceivedRequest
from services.scheduler.state.request_table import NOWHERE
from shared.messages.requests import ActiveRequest, UnfinishedQuery


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
