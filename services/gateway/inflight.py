"""Requests under way: published on the bus, followed to their outcome, cancelled when nobody waits any more.

Progress and outcome come as plain messages, which a reconnect can lose; the outcome is also in its stream, where
it is looked up every LOOKUP_S.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.errors import APIError, NotFoundError
from opentelemetry import trace

from services.gateway.api.errors import ApiError
from services.gateway.bus_connection import BusConnection
from shared.arrays import Float32, Int32, unpack_float32, unpack_int32
from shared.bus.client import Bus, try_decode
from shared.bus.codec import decode
from shared.bus.subjects import message_kind
from shared.errors import BadInput, RetryLater
from shared.messages.instances import ModelCard
from shared.messages.requests import Cancel, Guesses, Outcome, Progress, Request

log = structlog.get_logger(__name__)
tracer = trace.get_tracer(__name__)

LOOKUP_S = 3.0
BATCHES = "batches"  # in place of a key, for the lines of batches: they use up nobody's room


@dataclass(frozen=True, slots=True)
class Unmasked:
    """Tokens unmasked by one step, or only guessed; n of each. Positions count from the start of the output."""

    step: int
    positions: Int32
    tokens: Int32
    confidences: Float32
    committed: bool = True  # else guessed for positions that are masked still


class InFlightRequest:
    """One request under way. `close` must follow, however it ends."""

    def __init__(self, bus: Bus, request: Request, card: ModelCard, timeout_s: float, *, lasting: bool) -> None:
        """A `lasting` request goes on when nobody waits any more: its outcome will be fetched."""
        self.request = request
        self._lasting = lasting
        self._bus = bus
        self._card = card
        self._deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._events: asyncio.Queue[Unmasked | Outcome | RetryLater] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._ended = False
        self._closed = False
        self._span = tracer.start_span("request", attributes={"dilaserve.request_id": request.request_id})

    async def start(self) -> None:
        """Listen, then publish, so that nothing is missed. Raises: RetryLater if the bus does not take it.

        A lasting request may have been sent before: the outcome that is there stands.
        """
        if self._lasting and (outcome := await find_outcome(self._bus, self.request.request_id)):
            self._events.put_nowait(outcome)
            return
        subjects, name = self._bus.subjects, self.request.request_id
        # One subscription, so that progress, guesses and outcome stay in their order.
        subject = subjects.request_messages(name) if self.request.stream else subjects.outcomes(name)
        try:
            self._subscription = await self._bus.nc.subscribe(subject, cb=self._hear)
        except nats.errors.Error as error:
            raise RetryLater("the bus is not connected") from error
        with trace.use_span(self._span):
            await self._bus.store(subjects.requests, self.request)

    async def events(self) -> AsyncIterator[Unmasked | Outcome]:
        """What happens to the request; the outcome comes last.

        Raises: ApiError 504 after the time-out; RetryLater once it is broken off.
        """
        clock = asyncio.get_running_loop().time
        while not (self._ended or self._closed):
            event: Unmasked | Outcome | RetryLater | None
            try:
                async with asyncio.timeout(min(LOOKUP_S, self._deadline_s - clock())):
                    event = await self._events.get()
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
                self.give_up()
                raise ApiError(504, "the request was not served in time and is cancelled", code="timeout")

    async def outcome(self) -> Outcome:
        """How the request ended. Raises: as `events`."""
        async for event in self.events():
            if isinstance(event, Outcome):
                return event
        raise RetryLater("the gateway waits no more")  # closed meanwhile

    def break_off(self, reason: str) -> None:
        """Tell whoever follows the request that no more will come."""
        self._events.put_nowait(RetryLater(reason))

    def give_up(self) -> None:
        """Have even a lasting request cancelled when it is closed."""
        self._lasting = False

    async def close(self) -> None:
        """Stop listening; a request without an outcome is cancelled, unless it is a lasting one."""
        self._closed = True
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()
        if not (self._ended or self._lasting):
            with contextlib.suppress(nats.errors.Error):
                subject = self._bus.subjects.cancel(self.request.request_id)
                await self._bus.publish(subject, Cancel(reason="the gateway waits no more"))
        self._span.end()

    async def _look_up(self) -> Outcome | None:
        try:
            return await find_outcome(self._bus, self.request.request_id)
        except RetryLater as error:
            log.warning("outcome not looked up", request_id=self.request.request_id, error=str(error))
            return None

    async def _hear(self, msg: Msg) -> None:
        match message_kind(msg.subject):
            case "outcomes":
                outcome = try_decode(msg, Outcome)
                if outcome is not None:
                    self._events.put_nowait(outcome)
            case "progress":
                self._hear_tokens(try_decode(msg, Progress))
            case "guesses":
                self._hear_tokens(try_decode(msg, Guesses))

    def _hear_tokens(self, progress: Progress | Guesses | None) -> None:
        if progress is None:
            return
        try:
            self._events.put_nowait(read_progress(progress, self.request.output_tokens, self._card.vocab_size))
        except ValueError as error:
            log.warning("unusable progress dropped", request_id=self.request.request_id, error=str(error))


class InFlightRequests:
    """Opens calls and knows those under way."""

    def __init__(self, link: BusConnection, card: ModelCard, timeout_s: float) -> None:
        self._link = link
        self._card = card
        self._timeout_s = timeout_s
        self._active: dict[InFlightRequest, str] = {}  # with the key they came with
        self._active_of: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def active(self) -> int:
        return len(self._active)

    def active_of(self, key_id: str) -> int:
        """Requests under way that came with this key."""
        return self._active_of[key_id]

    async def open(
        self, request: Request, key_id: str = "", *, lasting: bool = False, timeout_s: float | None = None
    ) -> InFlightRequest:
        """Publish `request`. Raises: RetryLater if the bus is away."""
        call = InFlightRequest(self._link.bus, request, self._card, timeout_s or self._timeout_s, lasting=lasting)
        self._active[call] = key_id
        self._active_of[key_id] += 1
        self._idle.clear()
        try:
            await call.start()
        except BaseException:
            self.close(call)
            raise
        return call

    def close(self, call: InFlightRequest) -> None:
        """Have `call` closed; safe to use where one is being cancelled, as it waits for nothing."""
        task = asyncio.get_running_loop().create_task(call.close())
        self._closing.add(task)
        task.add_done_callback(partial(self._closed, call))

    async def idle(self, within_s: float) -> None:
        """Wait until no call is under way; those that are then still are broken off."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            for call in self._active:
                call.break_off("the gateway is shutting down")

    def _closed(self, call: InFlightRequest, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if (key_id := self._active.pop(call, None)) is not None:
            self._active_of[key_id] -= 1
            if not self._active_of[key_id]:
                del self._active_of[key_id]
        if not self._active:
            self._idle.set()


def read_progress(progress: Progress | Guesses, output_tokens: int, vocab_size: int) -> Unmasked:
    """The arrays of a message. Raises: ValueError if they do not fit together or the request."""
    positions, tokens = unpack_int32(progress.positions), unpack_int32(progress.tokens)
    confidences = unpack_float32(progress.confidences)
    if not len(positions) == len(tokens) == len(confidences):
        raise ValueError(f"{len(positions)} positions, {len(tokens)} tokens, {len(confidences)} confidences")
    if len(positions) and not (positions.min() >= 0 and positions.max() < output_tokens):
        raise ValueError(f"positions outside 0..{output_tokens - 1}")
    if len(tokens) and not (tokens.min() >= 0 and tokens.max() < vocab_size):
        raise ValueError(f"tokens outside 0..{vocab_size - 1}")
    return Unmasked(progress.step, positions, tokens, confidences, committed=isinstance(progress, Progress))


async def find_outcome(bus: Bus, request_id: str) -> Outcome | None:
    """The stored outcome; None if there is none. Raises: RetryLater if the bus does not answer."""
    subjects = bus.subjects
    try:
        stored = await bus.js.get_last_msg(subjects.stream("OUTCOMES"), subjects.outcomes(request_id), direct=True)
    except NotFoundError:
        return None
    except (nats.errors.Error, APIError, TimeoutError) as error:
        raise RetryLater(f"the outcomes are not answered: {error!r}") from error
    try:
        return decode(stored.data or b"", Outcome)
    except BadInput as error:
        log.warning("unreadable outcome", request_id=request_id, error=error.message)
        return None
