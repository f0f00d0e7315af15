"""Receives requests and cancels. The scheduler holds a bounded number of requests; the others wait, best first.

A request is held from its preparation until its outcome is stored. The message of a waiting one stays in the stream and
is read again when there is room.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from itertools import chain

import structlog
from msgspec.structs import replace
from nats.aio.msg import Msg

from services.scheduler.events import RequestCancelled
from services.scheduler.io.delivery import Delivery
from services.scheduler.io.delivery_watch import DeliveryWatch
from services.scheduler.io.event_queue import EventQueue
from services.scheduler.io.outcome_store import LOST, OutcomeStore
from services.scheduler.io.request_decoder import InvalidRequest, decode_request, has_producer
from services.scheduler.io.request_preparer import RequestLost, RequestMessage, RequestPreparer, text_length
from services.scheduler.io.waiting_requests import ReceivedRequest, WaitingRequests
from services.scheduler.state.totals import Totals
from shared.arrays import INT32_BYTES
from shared.background import DeferredTasks
from shared.bus.client import Bus, try_decode
from shared.bus.clock import BusClock
from shared.bus.errors import BUS_ERRORS
from shared.bus.settlement import discard, redeliver
from shared.bus.subjects import consumer_epoch, name_in, request_consumer
from shared.errors import BadInput
from shared.messages.requests import Arrival, Cancel, OutcomeStatus, Request
from shared.pinned import count_pinned
from shared.tasks import run_beside
from shared.text import round_up_to_blocks

log = structlog.get_logger(__name__)

EARLY_CANCEL_TTL_S = 60.0  # time for which a cancel is kept for its request, which uses another subject and is slower
RETRY_REPLACED_S = 0.1  # delay of a request sent again, whose first message is not acknowledged yet
CHARS_PER_TOKEN = 4  # of a waiting text, which is not tokenized yet


@dataclass(slots=True)
class _Held:
    received: ReceivedRequest
    in_core: bool = False
    cancelled: bool = False


@dataclass
class RequestConsumer:
    """Puts the requests of one epoch, and their cancels, into the event queue."""

    _bus: Bus
    _clock: BusClock
    _preparer: RequestPreparer
    _queue: EventQueue
    _outcomes: OutcomeStore
    _deferred: DeferredTasks
    _totals: Totals  # counts what arrives, and what is cancelled before the core receives it
    _: KW_ONLY
    default_slo_s: float
    max_held: int
    epoch: int

    def __post_init__(self) -> None:
        self._held: dict[str, _Held] = {}  # by request id
        self._waiting = WaitingRequests()
        self._early_cancels: dict[str, float] = {}  # by id of an unknown request: loop time until which it is kept
        self._room = asyncio.Event()  # a held request has ended
        self._tasks = asyncio.TaskGroup()
        self._stream_created: datetime | None = None
        self._is_void = asyncio.Event()  # of the deliveries from this stream
        self._outcomes.on_acknowledged = self._release
        self._stream, self._consumer = self._bus.subjects.stream("REQUESTS"), request_consumer(self.epoch)
        name = str(self._consumer.durable_name)
        self.deliveries = DeliveryWatch(self._bus, self._stream, name, self._will_acknowledge)

    def knows(self, request_id: str) -> bool:
        """Whether this scheduler has received the request."""
        return self.find(request_id) is not None or self._outcomes.remembers(request_id)

    def find(self, request_id: str) -> ReceivedRequest | None:
        """The request if it has no outcome yet."""
        held = self._held.get(request_id)
        return held.received if held else self._waiting.get(request_id)

    def unfinished(self) -> Iterator[ReceivedRequest]:
        """The requests without an outcome: those held first, each in the order in which they came."""
        yield from (held.received for held in self._held.values())
        yield from self._waiting

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def oldest_late_s(self, now_s: float) -> float:
        """The age of the first waiting request if its SLO has passed, else 0; `now_s` is Unix time."""
        first = self._waiting.first()
        age_s = now_s - first.arrival.arrival_s if first else 0.0
        return age_s if first and age_s > first.arrival.slo_s else 0.0

    async def run(self) -> None:
        """Receive requests until cancelled.

        The bus redelivers those that earlier schedulers did not finish, and after a loss all without acknowledgement.
        """
        stream, watch = self._stream, self.deliveries

        async def begin() -> None:
            """Void the deliveries of a deleted stream. Remove other consumers, such as those of superseded schedulers:
            the stream allows only one."""
            watch.stop()
            created = (await self._bus.js.stream_info(stream)).created
            if created != self._stream_created:
                self._is_void.set()
                self._is_void, self._stream_created = asyncio.Event(), created
            for name in await self._bus.consumer_names(stream):
                if consumer_epoch(name) < self.epoch:
                    await self._bus.js.delete_consumer(stream, name)

        async with self._tasks:
            self._tasks.create_task(self._promote())
            while True:
                consuming = self._bus.run_consumer(
                    stream, self._consumer, self._receive, before_create=begin, on_create=watch.start, is_exclusive=True
                )
                await run_beside(consuming, [watch.wait_for_loss()])

    def _will_acknowledge(self, sequence: int) -> bool:
        """Whether the message of this sequence was received, and will be acknowledged."""
        deliveries = chain((each.delivery for each in self.unfinished()), self._outcomes.deliveries())
        return any(each.sequence == sequence and not each.is_void for each in deliveries)

    async def subscribe_cancels(self) -> None:
        await self._bus.nc.subscribe(self._bus.subjects.cancel(">"), cb=self._receive_cancel)

    async def _receive(self, msg: Msg) -> None:
        self.deliveries.note(msg)
        try:
            request = decode_request(msg.subject, msg.data)
        except BadInput as error:
            await discard(msg, error)
            return
        if self._outcomes.is_replaceable(request.request_id):
            await redeliver(msg, RETRY_REPLACED_S)
            return
        delivery = Delivery.of(msg, self._bus.nc, self._is_void)
        if await self._handle_repeated(request.request_id, delivery):
            return
        self._totals.arrived += 1
        if isinstance(request, InvalidRequest):
            self._reject(request.request_id, delivery, request.error)
        else:
            try:
                self._accept(request, delivery, msg)
            except Exception as error:
                self._fault(request, delivery, self._clock.now_s(), error)

    def _accept(self, request: Request, delivery: Delivery, msg: Msg) -> None:
        waiting = ReceivedRequest(delivery, self._arrival(request, msg), request.priority, request.key)
        if self._early_cancels.pop(request.request_id, 0.0) > asyncio.get_running_loop().time():
            self._cancel(waiting)
        elif self._waiting or len(self._held) >= self.max_held:
            self._waiting.add(waiting)
            self._publish_arrival(waiting.arrival)
        else:
            self._hold(waiting, RequestMessage(request, msg.headers))

    async def _handle_repeated(self, request_id: str, delivery: Delivery) -> bool:
        """Whether the request was received before. If so, its first message stays on the bus until the outcome is
        stored, and another message of it is acknowledged; that of an ended request which names its producer is
        acknowledged once the outcome is stored again. The same message, delivered again, is left alone."""
        unfinished = self.find(request_id)
        if unfinished is None and not self._outcomes.remembers(request_id):
            return False
        log.debug("request received again", request_id=request_id)
        awaited = self._outcomes.deliveries() if unfinished is None else [unfinished.delivery]
        if delivery not in awaited and unfinished is None and has_producer(request_id):
            self._outcomes.repeat(request_id, delivery)
        elif delivery not in awaited:
            await self._acknowledge(delivery)
        return True

    def _hold(self, waiting: ReceivedRequest, message: RequestMessage | None = None) -> None:
        held = self._held[waiting.request_id] = _Held(waiting)
        self._tasks.create_task(self._prepare(held, message))

    async def _prepare(self, held: _Held, message: RequestMessage | None) -> None:
        """Put the request into the event queue, unless it is invalid, lost, or has its outcome."""
        waiting = held.received
        request_id, delivery = waiting.request_id, waiting.delivery
        try:
            arrived = await self._preparer.prepare(waiting, message)
        except BadInput as error:
            self._reject(request_id, delivery, error)
            return
        except RequestLost:
            log.error("accepted request lost", request_id=request_id)  # noqa: TRY400 - the error shows no more
            self._outcomes.end(waiting, OutcomeStatus.FAILED, LOST)
            return
        except Exception as error:
            self._fault(waiting, delivery, waiting.arrival.arrival_s, error)
            return
        if arrived is None:
            log.info("request already has its outcome", request_id=request_id)
            if has_producer(request_id):
                self._outcomes.repeat(request_id, delivery)  # which releases it
            else:
                await self._acknowledge(delivery)
                self._release(request_id, delivery)
            return
        if message is not None:  # it did not wait, so its arrival is not published yet
            self._publish_arrival(
                replace(waiting.arrival, prompt_tokens=len(arrived.prompt_ids) + count_pinned(arrived.request))
            )
        self._queue.put(arrived)
        held.in_core = True
        if held.cancelled:
            self._queue.put(RequestCancelled(request_id))

    def _release(self, request_id: str, delivery: Delivery) -> None:
        held = self._held.get(request_id)
        if held is not None and held.received.delivery == delivery:
            del self._held[request_id]
            self._room.set()

    async def _promote(self) -> None:
        """Hold waiting requests when there is room, until cancelled."""
        while True:
            await self._room.wait()
            self._room.clear()
            while self._waiting and len(self._held) < self.max_held:
                self._hold(self._waiting.pop())

    async def _receive_cancel(self, msg: Msg) -> None:
        if (msg.headers or {}).get("Status"):  # a reply of the bus, which anyone can send here
            return
        if msg.data and try_decode(msg, Cancel) is None:  # an empty message is a cancel, too
            return
        request_id = name_in(msg.subject)
        if held := self._held.get(request_id):
            held.cancelled = True
            if held.in_core:
                self._queue.put(RequestCancelled(request_id))
        elif waiting := self._waiting.remove(request_id):
            self._cancel(waiting)
        elif not self._outcomes.remembers(request_id):
            self._keep_cancel(request_id, asyncio.get_running_loop().time())

    def _keep_cancel(self, request_id: str, now_s: float) -> None:
        """Keep a cancel for its request, and drop those whose request did not arrive."""
        self._early_cancels.pop(request_id, None)
        self._early_cancels[request_id] = now_s + EARLY_CANCEL_TTL_S
        while self._early_cancels[first := next(iter(self._early_cancels))] < now_s:
            del self._early_cancels[first]

    def _cancel(self, waiting: ReceivedRequest) -> None:
        self._totals.cancelled += 1
        self._outcomes.end(waiting, OutcomeStatus.CANCELLED)

    def _reject(self, request_id: str, delivery: Delivery, error: BadInput) -> None:
        log.info("request rejected", request_id=request_id, error=error.message)
        self._totals.rejected += 1
        self._outcomes.reject(request_id, delivery, error)

    def _fault(
        self, request: Request | ReceivedRequest, delivery: Delivery, arrival_s: float, error: Exception
    ) -> None:
        """Fail a request alone whose data raised an unexpected error: every scheduler would end for it."""
        self._totals.failed += 1
        self._outcomes.fault(request, delivery, arrival_s, error)

    async def _acknowledge(self, delivery: Delivery) -> None:
        """If the bus is unavailable, it delivers the message again."""
        try:
            await delivery.acknowledge()
        except BUS_ERRORS as error:
            log.warning("request not acknowledged", error=repr(error))

    def _publish_arrival(self, arrival: Arrival) -> None:
        self._deferred.defer(partial(self._bus.publish, self._bus.subjects.arrivals, arrival))

    def _arrival(self, request: Request, msg: Msg) -> Arrival:
        ids, pinned = request.prompt_ids, count_pinned(request)
        prompt_tokens = text_length(request) // CHARS_PER_TOKEN if ids is None else len(ids) // INT32_BYTES
        return Arrival(
            request_id=request.request_id,
            arrival_s=arrival_time(request, msg.metadata.timestamp.timestamp(), self._clock.now_s()),
            prompt_tokens=prompt_tokens + pinned,
            output_tokens=max(round_up_to_blocks(request.output_tokens, request.block_length) - pinned, 1),
            slo_s=request.slo_s or self.default_slo_s,
        )


def arrival_time(request: Request, stored_s: float, now_s: float) -> float:
    """The request's arrival, at most `now_s`: its age at the publication counts, by the producer's own clock.
    Units: Unix time in seconds, by the bus's clock."""
    return min(now_s, stored_s - request.age_s)
