"""The predictor's main loop: answers all queries that arrived during the last computation together."""

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
    """One member of the predictors' queue group."""

    def __init__(self, bus: Bus, predictor: StepPredictor, version: str, metrics: PredictorMetrics) -> None:
        self._bus = bus
        self._predictor = predictor
        self._version = version
        self._metrics = metrics
        self._queue: list[tuple[str, Query, trace.Span]] = []  # with the subject of the reply
        self._wake = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Answer until `stop` is set, then the queries delivered by then."""
        subscription = await self._bus.nc.subscribe(self._bus.subjects.predict, queue=PREDICTORS, cb=self._receive)
        await self._bus.nc.flush()
        log.info("ready", predictor=self._version)
        stopping = asyncio.ensure_future(self._unsubscribe(stop, subscription))
        while self._queue or not stopping.done():
            await self._wake.wait()
            self._wake.clear()
            queue, self._queue = self._queue, []
            if queue:
                await self._answer(queue)
        await stopping

    async def _unsubscribe(self, stop: asyncio.Event, subscription: Subscription) -> None:
        await stop.wait()
        await subscription.drain()  # type: ignore[no-untyped-call]  # delivered messages still reach _receive
        self._wake.set()

    async def _receive(self, msg: Msg) -> None:
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
        self._queue.append((msg.reply, query, span))
        self._wake.set()

    async def _answer(self, queue: list[tuple[str, Query, trace.Span]]) -> None:
        """If a query raises an error, the others are answered one by one, and its sender gets no answer."""
        started_s = time.perf_counter()
        try:
            answers = self._predictor.steps_left([query for _, query, _ in queue])
        except Exception:
            if len(queue) > 1:
                for each in queue:
                    await self._answer([each])
            else:
                log.exception("a query raised an error")
                self._metrics.failed.inc()
            return
        self._metrics.answered(sum(map(len, answers)), time.perf_counter() - started_s)
        for (reply, _, span), steps_left in zip(queue, answers, strict=True):
            await self._bus.publish(reply, StepsLeft(steps_left=pack_float32(steps_left), predictor=self._version))
            span.end()
