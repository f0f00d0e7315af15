"""Requests in flight: published on the bus, followed to their outcome, cancelled when their client leaves.

Progress and outcome arrive as plain messages, which a reconnect can lose. The outcome is also stored in its stream,
where it is looked up every LOOKUP_S.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import numpy as np
import structlog
from msgspec.structs import replace
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from opentelemetry import trace

from services.gateway.bus_connection import BusConnection
from services.gateway.errors import ApiError, check_completed
from shared.arrays import INT32_BYTES, Float32, Int32, unpack_float32, unpack_int32
from shared.bus.client import Bus, try_decode
from shared.bus.codec import decode
from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.bus.subjects import message_kind
from shared.bus.watch import Look
from shared.errors import BadInput, RetryLater, StorageFull
from shared.messages.instances import ModelCard
from shared.messages.requests import (
    ACCEPT_S,
    ACCEPTED,
    ActiveRequest,
    Cancel,
    Guesses,
    Outcome,
    OutcomeStatus,
    Progress,
    Request,
    TopTokens,
)

log = structlog.get_logger(__name__)
tracer = trace.get_tracer(__name__)

LOOKUP_S = 3.0  # between lookups of the stored outcome
LOOKUP_TIMEOUT_S = 1.0  # for the scheduler's answer about a request that runs
MESSAGES: Mapping[str, type[Outcome | Progress]] = {"outcomes": Outcome, "progress": Progress, "guesses": Guesses}
Confirm = Callable[[], Awaitable[None]]
BATCH_OWNER = "batches"  # the owner of all batch lines, which count towards no limit


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Tokens that one step unmasked or guessed; n of each. Positions count from the start of the output."""

    step: int
    positions: Int32
    tokens: Int32
    confidences: Float32
    top_tokens: TopTokens | None = None  # of the same positions
    committed: bool = True  # False: guesses for positions that are still masked
    is_draft: bool = False  # a later step may change them


@dataclass(eq=False, repr=False)
class InFlightRequest:
    """One request. The caller of `InFlightRequests.open` must `close` it, however it ends."""

    _bus: Bus
    request: Request
    _card: ModelCard
    _arrived_s: float  # by `time.perf_counter`
    _timeout_s: float
    _on_close: "Callable[[InFlightRequest], None]"  # must run `end`
    _confirm: Confirm | None  # as `InFlightRequests.open`

    def __post_init__(self) -> None:
        self.cell = self._bus.subjects.cell
        self.cancel_on_close = self._confirm is None
        self._deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        self._queue: asyncio.Queue[StepTokens | Outcome | RetryLater] = asyncio.Queue()
        self._heard = asyncio.Event()  # a message about the request has arrived
        self._first: StepTokens | Outcome | None = None  # of the events, if `first_event` has waited for it
        self._subscription: Subscription | None = None
        self._lost: Outcome | None = None  # the outcome of the same request before it was sent again
        self._refusal: Outcome | None = None
        self._ended = False
        self._closed = False
        self._span = tracer.start_span("request", attributes={"dilaserve.request_id": self.request.request_id})

    async def start(self) -> None:
        """Subscribe, publish the request and confirm it, unless it is durable and has a final outcome already.

        Raises: StorageFull if the cell is full; RetryLater if the bus does not store the request; ApiError 429 if the
        scheduler refuses it.
        """
        subjects, request_id = self._bus.subjects, self.request.request_id
        if self._confirm and (outcome := await self._bus.outcome(request_id)):
            if outcome.is_final:
                self._queue.put_nowait(outcome)
                return
            self._lost = outcome
        # One subscription keeps progress, guesses and outcome in order.
        follows = self.request.stream or self.request.may_refuse
        subject = subjects.request_messages(request_id) if follows else subjects.outcomes(request_id)
        with bus_errors("subscribe to the outcome"):
            self._subscription = await self._bus.nc.subscribe(subject, cb=self._receive)
        with trace.use_span(self._span):
            try:
                age_s = time.perf_counter() - self._arrived_s
                await self._bus.store(subjects.requests, replace(self.request, age_s=age_s))
            except StorageFull:
                self.cancel_on_close = False
                raise
        if self._confirm:
            await self._confirm()
        if self.request.may_refuse:
            await self._until_accepted()

    async def _until_accepted(self) -> None:
        """Wait until the scheduler accepts the request, at most for ACCEPT_S. Raises: ApiError 429 if it refuses it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ACCEPT_S):
                await self._heard.wait()
        if self._refusal is not None:
            self._ended = True
            check_completed(self._refusal, "")

    async def events(self) -> AsyncIterator[StepTokens | Outcome]:
        """The request's tokens, if it is streamed, then its outcome.

        Raises: ApiError 504 after the time-out; RetryLater after `abort`.
        """
        clock = asyncio.get_running_loop().time
        if self._first is not None:
            yield self._first
        while not (self._ended or self._closed):
            event: StepTokens | Outcome | RetryLater | None
            try:
                async with asyncio.timeout(min(LOOKUP_S, self._deadline_s - clock())):
                    event = await self._queue.get()
            except TimeoutError:
                event = await self._look_up()
            if isinstance(event, Outcome):
                self._ended = True
                self._span.set_attribute("dilaserve.status", event.status.value)
            if isinstance(event, RetryLater):
                raise event
            if event is not None:
                yield event
            elif clock() > self._deadline_s:
                self.cancel_on_close = True
                raise ApiError(504, "the request timed out and was cancelled", code="timeout")

    async def first_event(self) -> StepTokens | Outcome:
        """Wait for the first event, with which `events` begins all the same. Raises: as `events`."""
        async for event in self.events():
            self._first = event
            return event
        raise RetryLater("the request was closed before its outcome")

    async def outcome(self) -> Outcome:
        """Wait for the outcome. Raises: as `events`."""
        async for event in self.events():
            if isinstance(event, Outcome):
                return event
        raise RetryLater("the request was closed before its outcome")

    @property
    def prompt_tokens(self) -> int:
        """Without the pinned ones."""
        return len(self.request.prompt_ids or b"") // INT32_BYTES

    def abort(self, reason: str) -> None:
        """End `events` with RetryLater(reason)."""
        self._heard.set()
        self._queue.put_nowait(RetryLater(reason))

    def close(self) -> None:
        """End in a task of its own, so that the caller may be cancelled."""
        self._on_close(self)

    async def end(self) -> None:
        """Unsubscribe; cancel the request if it has no outcome and `cancel_on_close` is set."""
        self._closed = True
        if self._subscription is not None:
            with contextlib.suppress(*BUS_ERRORS):
                await self._subscription.unsubscribe()
        if self.cancel_on_close and not self._ended:
            subject = self._bus.subjects.cancel(self.request.request_id)
            with contextlib.suppress(*BUS_ERRORS):
                await self._bus.publish(subject, Cancel(reason="the client left or the request timed out"))
        self._span.end()

    async def check(self) -> bool:
        """End with an error if the bus has lost this request with its stream. Returns: whether that is known."""
        try:
            if await find_active(self._bus, self.request.request_id) is not None:
                return True
            if await self._bus.outcome(self.request.request_id) is None:
                log.error("accepted request lost", request_id=self.request.request_id)
                self.abort("the bus has lost the request: send it again")
        except RetryLater:
            return False
        return True

    async def _look_up(self) -> Outcome | None:
        outcome: Outcome | None = None
        try:
            outcome = await self._bus.outcome(self.request.request_id)
        except RetryLater as error:
            log.warning("outcome lookup failed", request_id=self.request.request_id, error=str(error))
        return outcome if outcome != self._lost else None

    async def _receive(self, msg: Msg) -> None:
        kind = MESSAGES.get(message_kind(msg.subject))
        message = try_decode(msg, kind) if kind else None
        try:
            if isinstance(message, Outcome) and message.status is OutcomeStatus.REFUSED:
                self._refusal = message
            if message is not None:
                self._heard.set()
            if message == ACCEPTED:
                return
            if isinstance(message, Progress):
                self._queue.put_nowait(unpack_tokens(message, self.request.output_tokens, self._card.vocab_size))
            elif message is not None:
                self._queue.put_nowait(message)
        except BadInput as error:
            log.warning("invalid progress dropped", request_id=self.request.request_id, error=error.message)


class EndedRequest(InFlightRequest):
    """A request whose outcome is known without the bus."""

    def __init__(self, request: Request, outcome: Outcome) -> None:
        self.request, self._outcome = request, outcome

    async def events(self) -> AsyncIterator[StepTokens | Outcome]:
        yield self._outcome

    @property
    def prompt_tokens(self) -> int:
        return self._outcome.prompt_tokens

    def close(self) -> None:
        """It holds nothing."""


class InFlightRequests:
    """Opens, counts and closes the gateway's requests."""

    def __init__(
        self, connection: BusConnection, card: ModelCard, timeout_s: float, on_open: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._on_open = on_open
        self._card = card
        self._timeout_s = timeout_s
        self._open: dict[InFlightRequest, str] = {}  # value: the owner
        self.counts: Counter[str] = Counter()  # by owner
        self._closing: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stream_created: datetime | None = None
        self._doubtful: list[InFlightRequest] = []  # those that a deleted stream may have held

    async def keep(self, bus: Bus, look: Look) -> None:
        """End the requests that were lost with their stream. Those that the scheduler knows continue."""
        if (stream := look.streams.get(bus.subjects.stream("REQUESTS"))) is None:
            return
        doubtful = [each for each in self._doubtful if each in self._open]
        checked = await asyncio.gather(*(each.check() for each in doubtful))
        self._doubtful = [each for each, is_known in zip(doubtful, checked, strict=True) if not is_known]
        if self._stream_created not in (None, stream.created):  # checked at the next look, when the rest has arrived
            self._doubtful = list(self._open)
        self._stream_created = stream.created

    @property
    def count(self) -> int:
        return len(self._open)

    async def open(
        self,
        request: Request,
        owner: str,
        arrived_s: float,
        *,
        confirm: Confirm | None = None,
        timeout_s: float | None = None,
    ) -> InFlightRequest:
        """Publish `request`. `owner`: an API key's id, or BATCH_OWNER; `arrived_s`: the arrival by `time.perf_counter`.
        `confirm`: of a durable request, which may have been published before and is served even if its client leaves;
        called when the bus has stored it.

        Raises: RetryLater if the bus is unavailable.
        """
        inflight = InFlightRequest(
            self._connection.bus, request, self._card, arrived_s, timeout_s or self._timeout_s, self._close, confirm
        )
        self._on_open()
        self._open[inflight] = owner
        self.counts[owner] += 1
        self._idle.clear()
        try:
            await inflight.start()
        except BaseException:
            inflight.close()
            raise
        return inflight

    def _close(self, inflight: InFlightRequest) -> None:
        task = asyncio.get_running_loop().create_task(inflight.end())
        self._closing.add(task)
        task.add_done_callback(partial(self._on_closed, inflight))

    async def drain(self, timeout_s: float) -> None:
        """Wait until all requests are closed; abort those that are still open after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            for inflight in self._open:
                inflight.abort("the gateway is shutting down")

    def _on_closed(self, inflight: InFlightRequest, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if (owner := self._open.pop(inflight, None)) is not None:
            self.counts[owner] -= 1
        if not self._open:
            self._idle.set()


def unpack_tokens(message: Progress, output_tokens: int, vocab_size: int) -> StepTokens:
    """Raises: BadInput if the arrays do not fit together or the request, or a confidence is not finite."""
    try:
        positions, tokens = unpack_int32(message.positions), unpack_int32(message.tokens)
        confidences = unpack_float32(message.confidences)
    except ValueError as error:
        raise BadInput(f"columns of a progress message: {error}") from None
    if not len(positions) == len(tokens) == len(confidences):
        raise BadInput(f"{len(positions)} positions, {len(tokens)} tokens, {len(confidences)} confidences")
    if len(positions) and not (positions.min() >= 0 and positions.max() < output_tokens):
        raise BadInput(f"positions outside 0..{output_tokens - 1}")
    if len(tokens) and not (tokens.min() >= 0 and tokens.max() < vocab_size):
        raise BadInput(f"tokens outside 0..{vocab_size - 1}")
    if not np.isfinite(confidences).all():
        raise BadInput("a confidence is not finite")
    committed = not isinstance(message, Guesses)
    return StepTokens(
        message.step, positions, tokens, confidences, message.top_tokens, committed=committed, is_draft=message.is_draft
    )


async def find_active(bus: Bus, request_id: str) -> ActiveRequest | None:
    """None: it is unknown, or has an outcome. Raises: RetryLater if no leading scheduler answers."""
    try:
        reply = await bus.nc.request(bus.subjects.lookup(request_id), b"", timeout=LOOKUP_TIMEOUT_S)
        found = decode(reply.data, ActiveRequest)
    except (*BUS_ERRORS, BadInput):
        raise RetryLater("no scheduler answers whether the request runs") from None
    return found if found.is_known else None
