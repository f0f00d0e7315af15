"""The state of a request that has no outcome yet, as gateways show it. Pure."""

from msgspec.structs import replace

from services.scheduler.core import SchedulerCore
from services.scheduler.io.waiting_requests import WaitingRequest
from services.scheduler.state.request_table import NOWHERE
from shared.messages.requests import ActiveRequest


def active_request(waiting: WaitingRequest, core: SchedulerCore) -> ActiveRequest:
    """`waiting` is the request as it was received; the core may have it by now."""
    arrival, table = waiting.arrival, core.table
    received = ActiveRequest(
        is_known=True,
        request_id=waiting.request_id,
        key=waiting.key,
        arrival_s=arrival.arrival_s,
        slo_s=arrival.slo_s,
        priority=waiting.priority,
        output_tokens=arrival.output_tokens,
    )
    row = table.row_of.get(waiting.request_id)
    if row is None:
        return received
    unmasked, instance = int(table.free_tokens[row] - table.masks_left[row]), int(table.instance[row])
    return replace(
        received,
        output_tokens=int(table.free_tokens[row]),
        unmasked_tokens=unmasked,
        instance="" if instance == NOWHERE else core.fleet.instance_id(instance),
        steps=int(table.steps[row]),
        migrations=int(table.migrations[row]),
        mean_threshold=float(table.threshold_tokens[row]) / unmasked if unmasked else None,
        trace_id=table.entry(row).arrived.trace_id,
    )
