"""Reads the decisions that the PLANS stream holds."""

from contextlib import suppress

import structlog
from nats.js.errors import NotFoundError

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.errors import bus_errors
from shared.errors import BadInput
from shared.messages.plans import PlanRecord

log = structlog.get_logger(__name__)


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
            try:
                message = await bus.js.get_msg(stream, sequence, direct=True)
                records.append(decode(message.data or b"", PlanRecord))
            except NotFoundError:  # replaced by a later message on the same subject
                pass
            except BadInput as error:
                log.warning("invalid plan left out", number=sequence, error=error.message)
            sequence -= 1
    return sorted(records, key=lambda record: record.plan_id, reverse=True)
