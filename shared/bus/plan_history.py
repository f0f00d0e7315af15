"""Reads the decisions that the PLANS stream holds."""

from contextlib import suppress

from nats.js.errors import NotFoundError

from shared.bus.client import Bus, try_decode
from shared.bus.errors import bus_errors
from shared.messages.plans import PlanRecord


async def read_plans(bus: Bus, limit: int) -> list[PlanRecord]:
    """Up to `limit` decisions, newest first. Invalid ones are left out.

    Raises: RetryLater if the bus does not answer.
    """
    stream = bus.subjects.stream("PLANS")
    records: list[PlanRecord] = []
    with bus_errors("read the plans"), suppress(NotFoundError):  # without the stream: no decisions yet
        state = (await bus.js.stream_info(stream)).state
        sequence = state.last_seq
        while len(records) < limit and sequence >= max(state.first_seq, 1):
            with suppress(NotFoundError):  # replaced by a later message on the same subject
                message = await bus.js.get_msg(stream, sequence, direct=True)
                if (record := try_decode(message, PlanRecord)) is not None:
                    records.append(record)
            sequence -= 1
    return sorted(records, key=lambda record: record.plan_id, reverse=True)
