"""Receives requests: decodes, tokenizes and checks them, and answers invalid ones."""

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial

import msgspec
import structlog
from nats.aio.msg import Msg

from services.scheduler.events import RequestArrived
from services.scheduler.io.event_queue import EventQueue
from services.scheduler.io.outcome_store import OutcomeStore
from services.scheduler.io.recovery import Recovery
from shared.background import DeferredTasks
from shared.bus.client import Bus
from shared.bus.codec import decode, is_json
from shared.bus.settlement import acknowledge, discard
from shared.bus.subjects import consumer_epoch, request_consumer
from shared.errors import BadInput
from shared.messages.requests import Arrival, Request, RequestId
from shared.text import TextModel, round_up_to_blocks

log = structlog.get_logger(__name__)

TRACE_HEADERS = ("traceparent", "tracestate")  # W3C trace context


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request's message on the stream; redeliveries of the message are equal."""

    sequence: int  # of the stream
    msg: Msg = field(compare=False)
    json: bool = field(compare=False)  # whether the outcome is JSON, as the request is


@dataclass(slots=True)
class RequestConsumer:
    """Puts the requests of one epoch into the event queue."""

    _bus: Bus
    _text: TextModel
    _default_slo_s: float
    _queue: EventQueue
    _outcomes: OutcomeStore
    _recovery: Recovery
    _deferred: DeferredTasks

    async def run(self, epoch: int) -> None:
        """Receive requests until cancelled; the bus redelivers those that earlier schedulers did not finish."""
        stream = self._bus.subjects.stream("REQUESTS")

        async def evict_superseded() -> None:
            for info in await self._bus.js.consumers_info(stream):
                if consumer_epoch(info.name) < epoch:
                    await self._bus.js.delete_consumer(stream, info.name)

        await self._bus.run_consumer(stream, request_consumer(epoch), self._receive, before_create=evict_superseded)

    async def _receive(self, msg: Msg) -> None:
        delivery = Delivery(msg.metadata.sequence.stream, msg, is_json(msg.data))
        try:
            request = decode(msg.data, Request)
        except BadInput as error:
            await self._reject_unreadable(delivery, error)
            return
        request_id = request.request_id
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            if self._outcomes.remembers(request_id) or await self._recovery.has_outcome(request_id, delivery.sequence):
                log.info("request already has its outcome")
                if not self._outcomes.will_settle(delivery):
                    await acknowledge(msg)
                return
            try:
                arrived = await self._arrived(request, delivery)
                self._queue.put(arrived)
                self._deferred.defer(partial(self._publish_arrival, arrived))
            except BadInput as error:
                log.info("request rejected", error=error.message)
                self._outcomes.reject(request_id, delivery, error)

    async def _publish_arrival(self, arrived: RequestArrived) -> None:
        arrival = Arrival(
            request_id=arrived.request.request_id,
            arrival_s=arrived.arrival_s,
            prompt_tokens=len(arrived.prompt_ids),
            output_tokens=arrived.output_length,
            slo_s=arrived.slo_s,
        )
        await self._bus.publish(self._bus.subjects.arrivals, arrival)

    async def _reject_unreadable(self, delivery: Delivery, error: BadInput) -> None:
        """Answer an invalid request that has an id; discard any other message."""
        try:
            request_id = decode(delivery.msg.data, _RequestName).request_id
        except BadInput:
            await discard(delivery.msg, error)
        else:
            log.info("request rejected", request_id=request_id, error=error.message)
            self._outcomes.reject(request_id, delivery, error)

    async def _arrived(self, request: Request, delivery: Delivery) -> RequestArrived:
        """Raises: BadInput if the model cannot serve the request."""
        if request.prompt_ids is None:  # tokenizing text is slow
            prompt_ids = await asyncio.to_thread(self._text.encode_request, request)
        else:
            prompt_ids = self._text.encode_request(request)
        output_length = round_up_to_blocks(request.output_tokens, request.block_length)
        self._text.check_length(len(prompt_ids), output_length, "output_tokens")
        return RequestArrived(
            request=request,
            prompt_ids=prompt_ids,
            output_length=output_length,
            slo_s=request.slo_s or self._default_slo_s,
            # at most now, even if the client's clock is ahead
            arrival_s=min(time.time(), request.arrival_s or delivery.msg.metadata.timestamp.timestamp()),
            delivery=delivery,
            trace={key: value for key, value in (delivery.msg.headers or {}).items() if key in TRACE_HEADERS},
            checkpoint=await self._recovery.checkpoint(request.request_id, delivery.sequence),
        )


class _RequestName(msgspec.Struct):
    """The part of a request that its outcome needs."""

    request_id: RequestId
