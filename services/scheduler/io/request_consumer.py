"""Requests off the stream: decoded, tokenized, checked; wrong ones answered at once, known ones settled."""

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
from shared.bus.subjects import consumer_epoch, request_consumer
from shared.errors import BadInput
from shared.messages.requests import Arrival, Request, RequestId
from shared.text import TextModel, round_up_to_blocks

log = structlog.get_logger(__name__)

TRACE_HEADERS = ("traceparent", "tracestate")  # W3C trace context


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request's message on the stream, the same however often it is delivered, and the form its outcome takes."""

    sequence: int  # of the stream
    msg: Msg = field(compare=False)
    json: bool = field(compare=False)


class RequestConsumer:
    """Pulls requests of one epoch and puts them into the inbox."""

    def __init__(
        self,
        bus: Bus,
        text: TextModel,
        default_slo_s: float,
        inbox: EventQueue,
        outcomes: OutcomeStore,
        backlog: Recovery,
        deferred: DeferredTasks,
    ) -> None:
        self._bus = bus
        self._text = text
        self._default_slo_s = default_slo_s
        self._inbox = inbox
        self._outcomes = outcomes
        self._backlog = backlog
        self._deferred = deferred

    async def run(self, epoch: int) -> None:
        """Take requests until cancelled. All that the schedulers before had not finished is delivered again."""
        stream = self._bus.subjects.stream("REQUESTS")

        async def evict_superseded() -> None:
            for info in await self._bus.js.consumers_info(stream):
                if consumer_epoch(info.name) < epoch:
                    await self._bus.js.delete_consumer(stream, info.name)

        await self._bus.run_consumer(stream, request_consumer(epoch), self._take, before_create=evict_superseded)

    async def _take(self, msg: Msg) -> None:
        delivery = Delivery(msg.metadata.sequence.stream, msg, is_json(msg.data))
        try:
            request = decode(msg.data, Request)
        except BadInput as error:
            await self._refuse_unreadable(delivery, error)
            return
        with structlog.contextvars.bound_contextvars(request_id=request.request_id):
            if await self._is_finished(request.request_id, delivery.sequence):
                log.info("request already has its outcome")
                if not self._outcomes.will_settle(delivery):  # else it stays on the bus until that is stored
                    await msg.ack()
                return
            try:
                arrived = await self._read(request, delivery)
                self._inbox.put(arrived)
                self._deferred.defer(partial(self._tell, arrived))
            except BadInput as error:
                log.info("request rejected", error=error.message)
                self._outcomes.reject(request.request_id, delivery, error)

    async def _tell(self, arrived: RequestArrived) -> None:
        await self._bus.publish(self._bus.subjects.arrivals, _arrival(arrived))

    async def _is_finished(self, request_id: str, sequence: int) -> bool:
        return self._outcomes.remembers(request_id) or await self._backlog.has_outcome(request_id, sequence)

    async def _refuse_unreadable(self, delivery: Delivery, error: BadInput) -> None:
        """Answer what is no valid request but names itself; bury the rest."""
        try:
            name = decode(delivery.msg.data, _Named).request_id
        except BadInput:
            log.warning("unreadable request buried", error=error.message)
            await delivery.msg.term()
        else:
            log.info("request rejected", request_id=name, error=error.message)
            self._outcomes.reject(name, delivery, error)

    async def _read(self, request: Request, delivery: Delivery) -> RequestArrived:
        """Raises: BadInput if the request asks for what the model cannot do."""
        if request.prompt_ids is None:  # tokenizing text takes a while
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
            # not later than now, whatever a producer's clock says
            arrival_s=min(time.time(), request.arrival_s or delivery.msg.metadata.timestamp.timestamp()),
            delivery=delivery,
            trace={key: value for key, value in (delivery.msg.headers or {}).items() if key in TRACE_HEADERS},
            checkpoint=await self._backlog.checkpoint(request.request_id, delivery.sequence),
        )


def _arrival(arrived: RequestArrived) -> Arrival:
    return Arrival(
        request_id=arrived.request.request_id,
        arrival_s=arrived.arrival_s,
        prompt_tokens=len(arrived.prompt_ids),
        output_tokens=arrived.output_length,
        slo_s=arrived.slo_s,
    )


class _Named(msgspec.Struct):
    """As much of a request as its outcome needs."""

    request_id: RequestId
