"""Reading the decisions that the bus keeps."""

import nats.errors
import structlog
from nats.js.errors import APIError, NotFoundError

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.errors import BadInput, RetryLater
from shared.messages.plans import PlanRecord

log = structlog.get_logger(__name__)


async def read_plans(bus: Bus, limit: int) -> list[PlanRecord]:
    """The newest decisions, newest first; none before the first, nor what cannot be read.

    Raises: RetryLater if the bus does not answer.
    """
    stream = bus.subjects.stream("PLANS")
    records: list[PlanRecord] = []
    try:
        state = (await bus.js.stream_info(stream)).state
        sequence = state.last_seq
        while len(records) < limit and sequence >= max(state.first_seq, 1):
            try:
                message = await bus.js.get_msg(stream, sequence, direct=True)
                records.append(decode(message.data or b"", PlanRecord))
            except NotFoundError:  # published again since, under a later number
                pass
            except BadInput as error:
                log.warning("unreadable plan left out", number=sequence, error=error.message)
            sequence -= 1
    except NotFoundError:  # no reconfigurator yet
        return []
    except (nats.errors.Error, APIError, TimeoutError) as error:
        raise RetryLater(f"the plans cannot be read: {error!r}") from error
    return sorted(records, key=lambda record: record.plan_id, reverse=True)
