"""Requests estimates from the step predictor in the background; an answer is an event."""

import asyncio

import numpy as np
import structlog
from nats.aio.msg import Msg
from opentelemetry import propagate, trace

from services.scheduler.events import EstimatesFailed, EstimatesReceived, RequestEstimates
from services.scheduler.io.event_queue import EventQueue
from shared.arrays import Float64, pack_float32, pack_int32, unpack_float32
from shared.bus.client import Bus, trace_headers
from shared.bus.codec import decode, encode
from shared.bus.errors import BUS_ERRORS
from shared.errors import BadInput
from shared.messages.predict import PredictSteps, StepsLeft

log = structlog.get_logger(__name__)
tracer = trace.get_tracer(__name__)

ANSWER_TIMEOUT_S = 1.0  # time after which the predictor counts as unavailable
HOLD_OFF_S = 1.0  # time for which an unavailable predictor receives no requests


class PredictorClient:
    """Puts the predictor's answers into the event queue."""

    def __init__(self, bus: Bus, thresholds: tuple[float, ...], version: str, queue: EventQueue) -> None:
        """`version`: of the predictor; answers of another one are not used."""
        self._bus = bus
        self._version = version
        self._thresholds = pack_float32(thresholds)
        self._count = len(thresholds)
        self._queue = queue
        self._tasks: set[asyncio.Task[None]] = set()
        self._unavailable_until_s = 0.0  # loop time

    def request(self, command: RequestEstimates) -> None:
        """Send the request; EstimatesReceived or EstimatesFailed follows within ANSWER_TIMEOUT_S."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._unavailable_until_s:
            self._queue.put(EstimatesFailed(command.tickets))
            return
        task = loop.create_task(self._answer(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, command: RequestEstimates) -> None:
        message = PredictSteps(
            features=pack_float32(command.features),
            thresholds=self._thresholds,
            masks_left=pack_int32(command.masks_left),
            blocks_left=pack_int32(command.blocks_left),
        )
        try:
            reply = await self._call(encode(message), command)
            steps_left = self._read(reply.data, len(command.tickets))
        except (*BUS_ERRORS, BadInput, ValueError) as error:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._unavailable_until_s:
                log.warning("no answer of the step predictor; using the one-shot estimate", error=repr(error))
            self._unavailable_until_s = loop.time() + HOLD_OFF_S
            self._queue.put(EstimatesFailed(command.tickets))
        else:
            self._queue.put(EstimatesReceived(command.tickets, command.steps, steps_left), wakes=False)

    async def _call(self, payload: bytes, command: RequestEstimates) -> Msg:
        """Call the predictor. The span belongs to the trace of the first traced request, and links to those of all."""
        kind, attributes = trace.SpanKind.CLIENT, {"dilaserve.requests": len(command.tickets)}
        contexts = [propagate.extract(each) for each in command.traces]
        links = [trace.Link(trace.get_current_span(context).get_span_context()) for context in contexts]
        with tracer.start_as_current_span("ask predictor", next(iter(contexts), None), kind, attributes, links):
            subject, headers = self._bus.subjects.predict, trace_headers()
            return await self._bus.nc.request(subject, payload, timeout=ANSWER_TIMEOUT_S, headers=headers)

    def _read(self, data: bytes, requests: int) -> Float64:
        """The estimates in an answer. Shape: [requests, thresholds].

        Raises: BadInput if the predictor has another version; ValueError if an estimate is not finite.
        """
        answer = decode(data, StepsLeft)
        if answer.predictor != self._version:
            raise BadInput(f"the predictor has the version {answer.predictor}, the cell {self._version}")
        steps_left = unpack_float32(answer.steps_left).reshape(requests, self._count).astype(np.float64)
        if not np.isfinite(steps_left).all():
            raise ValueError("an estimate is not finite")
        return steps_left
