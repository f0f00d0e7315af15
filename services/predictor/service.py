"""The predictor's loop: whatever has come while the last queries were computed is answered together."""

import asyncio
import time

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from opentelemetry import trace

from services.predictor.metrics import PredictorMetrics
from services.predictor.model import StepPredictor
from services.predictor.queries import Query, read_query
from shared.arrays import pack_float32
from shared.bus.client import Bus, trace_context, try_decode
from shared.bus.subjects import PREDICTORS
from shared.errors import BadInput
from shared.messages.predict import PredictSteps, StepsLeft

log = structlog.get_logger(__name__)
tracer = trace.get_tracer(__name__)


class PredictorService:
    """One member of the queue group."""

    def __init__(self, bus: Bus, predictor: StepPredictor, version: str, metrics: PredictorMetrics) -> None:
        self._bus = bus
        self._predictor = predictor
        self._version = version
        self._metrics = metrics
        self._waiting: list[tuple[str, Query, trace.Span]] = []  # where the answer goes, and the question
        self._wake = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Answer until `stop` is set; what has been delivered by then is still answered."""
        subscription = await self._bus.nc.subscribe(self._bus.subjects.predict, queue=PREDICTORS, cb=self._take)
        await self._bus.nc.flush()
        log.info("ready", predictor=self._version)
        stopping = asyncio.ensure_future(self._sign_off(stop, subscription))
        while not (stopping.done() and not self._waiting):
            await self._wake.wait()
            self._wake.clear()
            await self._answer_waiting()
        await stopping

    async def _sign_off(self, stop: asyncio.Event, subscription: Subscription) -> None:
        await stop.wait()
        await subscription.drain()  # type: ignore[no-untyped-call]  # what has been delivered is still taken
        self._wake.set()

    async def _take(self, msg: Msg) -> None:
        message = try_decode(msg, PredictSteps)
        if message is None or not msg.reply:
            return
        try:
            query = read_query(message)
        except BadInput as error:
            log.warning("impossible query dropped", error=error.message)
            return
        attributes = {"dilaserve.requests": len(query.features)}
        span = tracer.start_span("predict", context=trace_context(msg), attributes=attributes)
        self._waiting.append((msg.reply, query, span))
        self._wake.set()

    async def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        started_s = time.perf_counter()
        answers = await asyncio.to_thread(self._predictor.steps_left, [query for _, query, _ in waiting])
        self._metrics.answered(sum(map(len, answers)), time.perf_counter() - started_s)
        for (reply, _, span), steps_left in zip(waiting, answers, strict=True):
            await self._bus.publish(reply, StepsLeft(steps_left=pack_float32(steps_left), predictor=self._version))
            span.end()
