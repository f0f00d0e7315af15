"""Ends accepted requests that the bus has lost, for example in a damaged file, with an error that gives the reason.

Such a request has neither an outcome nor a message in the stream, but is known to be accepted: an earlier scheduler
recorded its arrival, or a gateway marked its claim as stored. A claim is the bus's entry for an Idempotency-Key.
Claims without this mark are ignored, because the gateway may have refused their requests.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy

from services.scheduler.io.lease import Lease
from services.scheduler.io.outcome_store import LOST, outcome_of, store_outcome
from shared.bus.client import Bus, last_token, try_decode
from shared.bus.clock import BusClock
from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.bus.stream_reader import read_stream
from shared.bus.subjects import request_consumer
from shared.messages.gateway import Claim
from shared.messages.requests import Arrival, OutcomeStatus
from shared.retry import retry
from shared.tasks import pause

log = structlog.get_logger(__name__)

MAX_AGE = timedelta(minutes=15)  # of the arrivals and claims that are checked
CHECK_S = 1.0  # between two looks at the requests that are not delivered yet
SETTLE_S = 5.0  # before the second look at a request without an outcome: it may be on its way
DECODED_AT_ONCE = 500  # messages, between which other tasks run: serving has priority
MAX_READS, READ_INTERVAL_S = 32, 0.1  # outcomes read at once, and the time between, for the same reason


async def reconcile(bus: Bus, clock: BusClock, lease: Lease, is_known: Callable[[str], bool]) -> None:
    """Fail the lost requests among those accepted within MAX_AGE, then wait until cancelled. `is_known(request_id)`:
    whether this scheduler has received the request. Tries again while the bus is unavailable."""
    accepted = await retry(partial(_accepted, bus, clock))
    await _wait_for_delivery(bus, lease.epoch)
    missing = await _without_outcome(bus, accepted, is_known)
    if missing:
        await asyncio.sleep(SETTLE_S)
        missing = await _without_outcome(bus, missing, is_known)
    for arrival in missing:
        if not is_known(arrival.request_id):  # its client may have sent it again
            log.error("accepted request lost", request_id=arrival.request_id)
            await lease.confirm()  # else a later leader may serve the request
            await retry(partial(store_outcome, bus, outcome_of(arrival, OutcomeStatus.FAILED, LOST)))
    await asyncio.Event().wait()  # `run_beside` would stop the scheduler when this returns


async def _accepted(bus: Bus, clock: BusClock) -> list[Arrival]:
    """One Arrival for each accepted request. The numbers of tokens are 0 if only its claim is known."""
    start = datetime.fromtimestamp(clock.now_s(), UTC) - MAX_AGE
    since = {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": start}
    subjects, bucket = bus.subjects, bus.subjects.claims_bucket
    with bus_errors("read the accepted requests"):
        claimed = await read_stream(bus, f"KV_{bucket}", f"$KV.{bucket}.>", **since)
        arrived = await read_stream(bus, subjects.stream("ARRIVALS"), subjects.arrivals, **since)
    accepted: dict[str, Arrival] = {}
    for read, messages in ((_claimed, claimed), (partial(try_decode, kind=Arrival), arrived)):
        for number, msg in enumerate(messages):
            if (arrival := read(msg)) is not None:
                accepted[arrival.request_id] = arrival
            if number % DECODED_AT_ONCE == 0:
                await asyncio.sleep(0)
    return list(accepted.values())


def _claimed(msg: Msg) -> Arrival | None:
    """None if the claim is not marked as stored."""
    claim = try_decode(msg, Claim)
    if claim is None or not claim.is_stored:
        return None
    stored_s = msg.metadata.timestamp.timestamp()
    return Arrival(request_id=last_token(msg.subject), arrival_s=stored_s, prompt_tokens=0, output_tokens=0, slo_s=0.0)


async def _wait_for_delivery(bus: Bus, epoch: int) -> None:
    """Wait until this scheduler has received all requests that are in the stream."""
    stream, name = bus.subjects.stream("REQUESTS"), request_consumer(epoch).durable_name
    while True:
        await pause(CHECK_S)
        try:
            info = await bus.js.consumer_info(stream, str(name))
        except BUS_ERRORS:
            continue  # not created yet, or the bus is unavailable
        if not info.num_pending:
            return


async def _without_outcome(bus: Bus, arrivals: list[Arrival], is_known: Callable[[str], bool]) -> list[Arrival]:
    missing = []
    unknown = [arrival for arrival in arrivals if not is_known(arrival.request_id)]
    for first in range(0, len(unknown), MAX_READS):
        some = unknown[first : first + MAX_READS]
        outcomes = await asyncio.gather(*(retry(partial(bus.outcome, arrival.request_id)) for arrival in some))
        missing += [arrival for arrival, outcome in zip(some, outcomes, strict=True) if outcome is None]
        await asyncio.sleep(READ_INTERVAL_S)
    return [arrival for arrival in missing if not is_known(arrival.request_id)]
