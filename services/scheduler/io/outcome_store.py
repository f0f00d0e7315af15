"""Stores the outcomes of requests, then acknowledges their messages; in this order no request is lost."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial

import structlog
from msgspec.structs import replace
from nats.js.api import RawStreamMsg

from services.scheduler.events import FinishRequest, fault_of
from services.scheduler.io.delivery import Delivery
from services.scheduler.io.request_decoder import has_producer
from services.scheduler.io.waiting_requests import ReceivedRequest
from shared.bus.client import Bus, try_decode
from shared.bus.clock import BusClock
from shared.bus.codec import is_json
from shared.bus.direct_reads import stream_pages
from shared.bus.errors import bus_errors
from shared.bus.subjects import OUTCOME_AGE_S
from shared.errors import BadInput
from shared.messages.requests import Arrival, Outcome, OutcomeError, OutcomeStatus, Request
from shared.retry import retry
from shared.tasks import cancel
from shared.text import TextModel

log = structlog.get_logger(__name__)

MAX_REMEMBERED = 100_000  # ids of finished requests; a second message with one of them is not served again
UNVERIFIED_MARGIN_S = 5.0  # by which an outcome may be older than the last good canary and become unverified
LOST = OutcomeError(message="the bus lost the request, for example in a damaged file: send it again", is_lost=True)
DRAIN_S = 5.0  # with LEASE_TTL_S below the ten seconds that a container has by default to stop


def outcome_of(
    arrival: Arrival, status: OutcomeStatus, error: OutcomeError | None = None, key: str = "", priority: int = 0
) -> Outcome:
    """The outcome of a request of which no step has run."""
    return Outcome(
        request_id=arrival.request_id,
        status=status,
        prompt_tokens=arrival.prompt_tokens,
        output_tokens=arrival.output_tokens,
        arrival_s=arrival.arrival_s,
        error=error,
        key=key,
        priority=priority,
    )


async def store_outcome(bus: Bus, outcome: Outcome, *, json: bool = False) -> None:
    """Store the outcome, unless its request has a final one; that it failed, if the outcome is larger than the bus
    takes. Replaces a message that is no outcome. Raises: as `Bus.store`.

    A named producer cannot read the stream, and also receives a message that the stream rejects as a duplicate. So it
    is sent the stored outcome again, if there is one, instead of the new one.
    """
    subject = bus.subjects.outcomes(outcome.request_id)
    if has_producer(outcome.request_id) and (first := await final_outcome(bus, outcome.request_id)) is not None:
        await bus.store(subject, first, json=json)
        return
    try:
        is_stored = await bus.store(subject, outcome, json=json, if_first=True)
    except BadInput as error:
        known = {name: getattr(outcome, name) for name in ("request_id", "arrival_s", "key", "priority", "trace_id")}
        outcome = Outcome(status=OutcomeStatus.FAILED, error=OutcomeError(message=error.message), **known)
        is_stored = await bus.store(subject, outcome, json=json, if_first=True)
    if not is_stored and await final_outcome(bus, outcome.request_id) is None:
        await bus.store(subject, outcome, json=json)


async def final_outcome(bus: Bus, request_id: str) -> Outcome | None:
    """The stored outcome; None if there is none, or the bus has lost the request. Raises: RetryLater."""
    outcome = await bus.outcome(request_id)
    return outcome if outcome is not None and outcome.is_final else None


async def mark_unverified(bus: Bus, instance_id: str, since: datetime) -> None:
    """Store the outcomes that this instance served, stored between `since` and now, again as unverified. Waits while
    the bus does not answer."""
    marked, name = 0, instance_id.encode()
    async for page in stream_pages(bus, bus.subjects.stream("OUTCOMES"), since):
        for message in page:
            if name in (message.data or b""):  # faster than to decode each
                marked += await _mark_outcome(bus, instance_id, message)
    log.warning("outcomes marked as unverified", instance=instance_id, outcomes=marked)


async def _mark_outcome(bus: Bus, instance_id: str, message: RawStreamMsg) -> bool:
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


class OutcomeStore:
    """Writes outcomes in the background; `drain` waits for them."""

    def __init__(self, bus: Bus, clock: BusClock, text: TextModel) -> None:
        self._bus = bus
        self._clock = clock
        self._text = text
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._writing: dict[asyncio.Task[None], Delivery] = {}  # the delivery that each task acknowledges
        self._replaceable = set[str]()  # ids of requests whose outcome in writing is not final
        self._distrusted: set[str] = set()  # ids of instances that compute wrong
        self._marking: set[asyncio.Task[None]] = set()
        self.on_acknowledged: Callable[[str, Delivery], None] = lambda _request_id, _delivery: None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self, finish: FinishRequest) -> None:
        """Store the outcome of a finished request."""
        arrived = finish.arrived
        try:
            outcome = self._outcome(finish)
        except Exception as error:
            self.fault(arrived.request, arrived.delivery, arrived.arrival_s, error)
        else:
            self._write(outcome, arrived.delivery)

    def _outcome(self, finish: FinishRequest) -> Outcome:
        arrived = finish.arrived
        ended = self._text.finish(finish.output_ids, arrived.request)
        completed = finish.status is OutcomeStatus.COMPLETED
        written, confidences = ended.written, finish.confidences
        given = self._text.given_tokens(arrived.request)
        labels, read = arrived.request.choices, finish.choices
        return Outcome(
            request_id=arrived.request.request_id,
            status=finish.status,
            text=ended.text,
            finish_reason=ended.finish_reason if completed else None,
            stop_reason=ended.stop_reason if completed else None,
            prompt_tokens=len(arrived.prompt_ids) + given,
            completion_tokens=len(written),
            token_ids=finish.output_ids[written].tobytes() if confidences is not None else b"",
            confidences=confidences[written].tobytes() if confidences is not None else b"",
            top_tokens=finish.top_tokens.read(written) if finish.top_tokens is not None else None,
            choices={} if read is None else dict(zip(labels, read.tolist(), strict=True)),
            output_tokens=arrived.output_length,
            arrival_s=arrived.arrival_s,
            stats=finish.stats,
            decisions=finish.decisions,
            error=finish.error,
            key=arrived.request.key,
            priority=arrived.request.priority,
            trace_id=arrived.trace_id,
            unverified=not finish.written_by.isdisjoint(self._distrusted),
        )

    def end(self, waiting: ReceivedRequest, status: OutcomeStatus, error: OutcomeError | None = None) -> None:
        """Store the outcome of a request that the core has not received."""
        outcome = outcome_of(waiting.arrival, status, error, waiting.key, waiting.priority)
        self._write(outcome, waiting.delivery)

    def reject(self, request_id: str, delivery: Delivery, error: BadInput) -> None:
        """Store the outcome of an invalid request."""
        outcome = Outcome(
            request_id=request_id,
            status=OutcomeStatus.REJECTED,
            arrival_s=self._clock.now_s(),
            error=OutcomeError(message=error.message, field=error.field),
        )
        self._write(outcome, delivery)

    def fault(self, request: Request | ReceivedRequest, delivery: Delivery, arrival_s: float, error: Exception) -> None:
        """Store the outcome of a request whose data raised an unexpected error."""
        log.error("a request raised an error", request_id=request.request_id, exc_info=error)
        outcome = Outcome(
            request_id=request.request_id,
            status=OutcomeStatus.FAILED,
            arrival_s=arrival_s,
            error=fault_of(error),
            key=request.key,
            priority=request.priority,
        )
        self._write(outcome, delivery)

    def repeat(self, request_id: str, delivery: Delivery) -> None:
        """Store the outcome of an ended request again, so that its producer receives it; acknowledge the message."""

        async def store_again() -> None:
            if (outcome := await self._bus.outcome(request_id)) is not None:
                await self._bus.store(self._bus.subjects.outcomes(request_id), outcome, json=delivery.json)

        self._until_acknowledged(request_id, delivery, store_again)

    def distrust(self, instance_id: str, unverified_s: float) -> None:
        """Mark the outcomes that this instance served, of the last `unverified_s` seconds and from now on, also those
        that an earlier scheduler has stored: their texts may be wrong."""
        self._distrusted.add(instance_id)
        age_s = min(max(unverified_s, 0.0) + UNVERIFIED_MARGIN_S, OUTCOME_AGE_S)
        since = datetime.fromtimestamp(self._clock.now_s() - age_s, UTC)
        task = asyncio.get_running_loop().create_task(self._mark(instance_id, since))
        self._marking.add(task)
        task.add_done_callback(self._marking.discard)
        task.add_done_callback(self._report_failure)

    async def _mark(self, instance_id: str, since: datetime) -> None:
        """Wait for the writes in progress, which may be of such outcomes, and then mark them."""
        if self._writing:
            await asyncio.wait(set(self._writing))
        await mark_unverified(self._bus, instance_id, since)

    def remembers(self, request_id: str) -> bool:
        """Whether this scheduler has finished the request."""
        return request_id in self._finished

    def is_replaceable(self, request_id: str) -> bool:
        """Whether an outcome that is not final is being stored: its client may have it, and send the request again."""
        return request_id in self._replaceable

    def deliveries(self) -> Iterable[Delivery]:
        """The messages that are acknowledged when the outcomes of their requests are stored."""
        return self._writing.values()

    async def wait_for_failure(self) -> None:
        """Wait until a write or a mark fails permanently. Raises: its error."""
        await self._failed

    async def drain(self) -> None:
        """Wait at most DRAIN_S until all outcomes are stored, also those stored again, and acknowledged."""
        storing = {*self._writing, *self._marking}
        if not storing:
            return
        _, left = await asyncio.wait(storing, timeout=DRAIN_S)
        if unstored := len(left & self._writing.keys()):
            log.warning("writes not finished; the bus delivers their requests again", requests=unstored)
        await cancel(left)

    def _write(self, outcome: Outcome, delivery: Delivery) -> None:
        if outcome.is_final:
            self._finished[outcome.request_id] = None
        else:
            self._replaceable.add(outcome.request_id)
        if len(self._finished) > MAX_REMEMBERED:
            self._finished.popitem(last=False)
        store = partial(store_outcome, self._bus, outcome, json=delivery.json)
        self._until_acknowledged(outcome.request_id, delivery, store)

    def _until_acknowledged(self, request_id: str, delivery: Delivery, store: Callable[[], Awaitable[None]]) -> None:
        """Store and acknowledge the message in the background, again while the bus does not answer."""

        async def store_and_acknowledge() -> None:
            try:
                await store()
            except BadInput as too_large:  # in the format of this message, which repeats a request
                log.warning("outcome not repeated", request_id=request_id, error=too_large.message)
            with bus_errors("acknowledge the request"):  # redelivery would take REQUEST_ACK_WAIT_S
                await delivery.acknowledge()

        task = asyncio.get_running_loop().create_task(retry(store_and_acknowledge))
        self._writing[task] = delivery
        task.add_done_callback(partial(self._written, request_id))

    def _written(self, request_id: str, task: asyncio.Task[None]) -> None:
        delivery = self._writing.pop(task)
        self._replaceable.discard(request_id)
        if not task.cancelled() and task.exception() is None:
            self.on_acknowledged(request_id, delivery)
        self._report_failure(task)

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        """Have `wait_for_failure` raise the error that ended the task, if one did."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)
