"""Asks the step predictor, off the critical path: the answer is an event like any other."""

import asyncio

import nats.errors
import numpy as np
import structlog
from nats.aio.msg import Msg
from opentelemetry import propagate, trace

from services.scheduler.events import EstimatesFailed, EstimatesReceived, RequestEstimates
from services.scheduler.io.event_queue import EventQueue
from shared.arrays import pack_float32, pack_int32, unpack_float32
from shared.bus.client import Bus, trace_headers
from shared.bus.codec import decode, encode
from shared.errors import BadInput
from shared.messages.predict import PredictSteps, StepsLeft

log = structlog.get_logger(__name__)
tracer = trace.get_tracer(__name__)

ANSWER_S = 1.0  # a predictor that does not answer within this is taken for away
HOLD_OFF_S = 1.0  # how long an absent predictor is not asked again


class PredictorClient:
    """Asks in the background and puts what comes into the inbox."""

    def __init__(self, bus: Bus, thresholds: tuple[float, ...], inbox: EventQueue) -> None:
        self._bus = bus
        self._thresholds = pack_float32(thresholds)
        self._count = len(thresholds)
        self._inbox = inbox
        self._asking: set[asyncio.Task[None]] = set()
        self._away_until_s = 0.0  # loop time

    def ask(self, question: RequestEstimates) -> None:
        """Send the question; EstimatesCame or EstimatesLost is in the inbox before long."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._away_until_s:
            self._lose(question)
            return
        task = loop.create_task(self._ask(question))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, question: RequestEstimates) -> None:
        message = PredictSteps(
            features=pack_float32(question.features),
            thresholds=self._thresholds,
            masks_left=pack_int32(question.masks_left),
            blocks_left=pack_int32(question.blocks_left),
        )
        try:
            reply = await self._request(encode(message), question)
            answer = unpack_float32(decode(reply.data, StepsLeft).steps_left)
            steps_left = answer.reshape(len(question.tickets), self._count).astype(np.float64)
        except (nats.errors.Error, TimeoutError, BadInput, ValueError) as error:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._away_until_s:
                log.warning("no step predictor answered; using the one-shot estimate", error=repr(error))
            self._away_until_s = loop.time() + HOLD_OFF_S
            self._lose(question)
        else:
            self._inbox.put(EstimatesReceived(question.tickets, question.steps, steps_left))

    async def _request(self, payload: bytes, question: RequestEstimates) -> Msg:
        """The answer; the span belongs to the first request asked about, which stands for all."""
        context, attributes = propagate.extract(question.trace), {"dilaserve.requests": len(question.tickets)}
        kind = trace.SpanKind.CLIENT
        with tracer.start_as_current_span("ask predictor", context=context, kind=kind, attributes=attributes):
            subject, headers = self._bus.subjects.predict, trace_headers()
            return await self._bus.nc.request(subject, payload, timeout=ANSWER_S, headers=headers)

    def _lose(self, question: RequestEstimates) -> None:
        self._inbox.put(EstimatesFailed(question.tickets))
