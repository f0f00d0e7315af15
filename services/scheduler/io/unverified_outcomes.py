"""Marks the stored outcomes of an instance that computes wrong."""

from datetime import datetime
from functools import partial

import structlog
from msgspec.structs import replace
from nats.js.api import RawStreamMsg

from shared.bus.client import Bus, try_decode
from shared.bus.codec import is_json
from shared.bus.direct_reads import stream_pages
from shared.errors import BadInput
from shared.messages.requests import Outcome
from shared.retry import retry

log = structlog.get_logger(__name__)


async def mark_unverified(bus: Bus, instance_id: str, since: datetime) -> None:
    """Store the outcomes that this instance served, stored between `since` and now, again as unverified. Waits while
    the bus does not answer."""
    marked, name = 0, instance_id.encode()
    async for page in stream_pages(bus, bus.subjects.stream("OUTCOMES"), since):
        for message in page:
            if name in (message.data or b""):  # faster than to decode each
                marked += await _mark(bus, instance_id, message)
    log.warning("outcomes marked as unverified", instance=instance_id, outcomes=marked)


async def _mark(bus: Bus, instance_id: str, message: RawStreamMsg) -> bool:
    """Returns: whether the outcome is marked now, and was not before."""
    outcome = try_decode(message, Outcome)
    if outcome is None or outcome.unverified or outcome.stats is None or instance_id not in outcome.stats.instances:
        return False
    subject, json = str(message.subject), is_json(message.data or b"")
    try:
        await retry(partial(bus.store, subject, replace(outcome, unverified=True), json=json))
    except BadInput as too_large:
        log.warning("outcome not marked", request_id=outcome.request_id, error=too_large.message)
        return False
    return True
