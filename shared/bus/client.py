"""The bus: NATS with JetStream behind the few verbs the services use. Every payload passes shared.bus.codec."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, Header, KeyValueConfig, ObjectStoreConfig, StreamConfig
from nats.js.errors import APIError, BadRequestError, NotFoundError
from nats.js.kv import KeyValue
from opentelemetry import propagate
from opentelemetry.context import Context, get_current

from shared.bus import subjects as declared
from shared.bus.codec import decode, encode
from shared.bus.pull_consumer import consume
from shared.bus.subjects import Subjects
from shared.errors import BadInput, RetryLater
from shared.liveness import keep_alive_file

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=msgspec.Struct)
RETRY_DELAY_S = 1.0  # how long a message that met a passing failure waits
WRONG_LAST_SEQUENCE = 10071  # the server's code for an expectation that does not hold
SET_UP_CHECK_S = 0.5  # how soon the streams and buckets of a restarted server are there again
CONNECT_WAIT_S = (0.05, 2.0)  # first and longest wait between attempts to connect


class Bus:
    """One connection to the bus, for one cell. `nc` and `js` are there for subscriptions."""

    def __init__(self, client: Client, cell: str, alive_file: str = "") -> None:
        self.nc = client
        self.js: JetStreamContext = client.jetstream(timeout=10)
        self.subjects = Subjects(cell)
        self._alive = asyncio.create_task(keep_alive_file(Path(alive_file))) if alive_file else None

    @classmethod
    async def connect(cls, url: str, cell: str, *, name: str, alive_file: str = "") -> "Bus":
        """Connect, waiting with back-off for as long as the server is away; later losses mend themselves.

        From then on `alive_file`, if given, is touched for as long as the event loop turns.
        """
        wait_s, longest_s = CONNECT_WAIT_S
        link = _LinkLog()
        while True:
            try:
                client = await nats.connect(
                    url,
                    name=name,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.25,
                    allow_reconnect=True,
                    error_cb=link.error,
                    reconnected_cb=link.connected,
                    connect_timeout=2,
                )
                await link.connected()
                return cls(client, cell, alive_file)
            except (nats.errors.Error, OSError, TimeoutError) as error:
                log.warning("bus away", url=url, error=str(error) or type(error).__name__, retry_s=wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, longest_s)

    async def publish(self, subject: str, message: msgspec.Struct, headers: Mapping[str, str] | None = None) -> None:
        """Hand to the bus without waiting for it to be stored (progress, step messages, cancels)."""
        await self.nc.publish(subject, encode(message), headers=trace_headers(headers))

    async def store(self, subject: str, message: msgspec.Struct, *, json: bool = False, if_first: bool = False) -> None:
        """Publish to a stream and wait until it is stored; with `if_first`, what its subject holds already stands.

        Raises: RetryLater when the stream does not answer.
        """
        headers = trace_headers({Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: "0"} if if_first else None)
        try:
            await self.js.publish(subject, encode(message, json=json), headers=headers)
        except (nats.errors.Error, APIError, TimeoutError) as error:
            if not (isinstance(error, APIError) and error.err_code == WRONG_LAST_SEQUENCE):
                raise RetryLater(f"could not store on {subject}: {error!r}") from error

    async def run_consumer(
        self,
        stream: str,
        config: ConsumerConfig,
        handle: Callable[[Msg], Awaitable[None]],
        make_way: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Hand each message of a stream to `handle` as it comes, until cancelled; the consumer is made where it is
        missing, at first and after a loss, each time after `make_way`."""
        while True:
            try:
                if make_way is not None:
                    await make_way()
                await self.js.add_consumer(stream, config)
                await consume(self.nc, stream, str(config.durable_name), handle)
            except (RetryLater, nats.errors.Error, APIError, TimeoutError) as error:
                log.warning("consumer interrupted", stream=stream, error=str(error) or repr(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def bucket(self, name: str) -> KeyValue:
        """Bind to a bucket, waiting until the set-up step has made it."""
        return await _until_there(lambda: self.js.key_value(name), name)

    async def wait_for_stream(self, name: str) -> None:
        """Wait until the set-up step has made the stream."""
        await _until_there(lambda: self.js.stream_info(name), name)

    async def set_up(self) -> None:
        """Create or update every stream and bucket of the cell. Called by the scheduler, their one owner."""
        for stream in declared.streams(self.subjects):
            await self._set_up_stream(stream)
        for bucket in declared.buckets(self.subjects):
            await self._set_up_bucket(bucket)
        for store in declared.object_stores(self.subjects):
            await self._set_up_object_store(store)

    async def ensure_set_up(self) -> None:
        """As `set_up`, tried again for as long as the server cannot: it may have just begun, or lack JetStream."""
        while True:
            try:
                return await self.set_up()
            except (nats.errors.Error, TimeoutError) as error:
                log.warning("JetStream cannot hold the cell's streams yet", error=repr(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def keep_set_up(self, on_loss: Callable[[], None]) -> None:
        """Set up anew, until cancelled, whatever a server that was started again has forgotten: all in its memory.
        Then say so to `on_loss`."""
        while True:
            await asyncio.sleep(SET_UP_CHECK_S)
            try:
                await self.js.stream_info(self.subjects.stream("STEPS"))
            except NotFoundError:
                await self.ensure_set_up()  # to the end: what was looked for is among the first to be there
                log.info("set up again: the server had been started anew")
                on_loss()
            except (nats.errors.Error, TimeoutError):
                continue  # away

    async def _set_up_stream(self, stream: StreamConfig) -> None:
        try:
            await self.js.add_stream(stream)
        except BadRequestError:  # it is there with other options
            await self.js.update_stream(stream)

    async def _set_up_bucket(self, bucket: KeyValueConfig) -> None:
        try:
            await self.js.key_value(bucket.bucket)
        except NotFoundError:
            await self.js.create_key_value(bucket)

    async def _set_up_object_store(self, store: ObjectStoreConfig) -> None:
        try:
            await self.js.object_store(str(store.bucket))
        except NotFoundError:
            await self.js.create_object_store(str(store.bucket), store)

    async def close(self) -> None:
        """Disconnect, sending what is under way if the server is there."""
        if self._alive is not None:
            self._alive.cancel()
        if self.nc.is_connected:
            await self.nc.drain()
        elif not self.nc.is_closed:
            with suppress(OSError, RuntimeError):  # what was to be sent cannot be; the latter is uvloop's way to say so
                await asyncio.shield(self.nc.close())


async def settle(msg: Msg, kind: type[M], handle: Callable[[M], Awaitable[None]]) -> None:
    """Acknowledge finished work, delay what met a passing failure, bury what cannot be read."""
    try:
        message = decode(msg.data, kind)
    except BadInput as error:
        log.warning("unreadable message buried", subject=msg.subject, error=error.message)
        await msg.term()
        return
    try:
        await handle(message)
    except RetryLater as error:
        log.warning("message delayed", subject=msg.subject, error=str(error))
        await msg.nak(delay=RETRY_DELAY_S)
        return
    await msg.ack()


def try_decode(msg: Msg, kind: type[M]) -> M | None:
    """The message, or None with a line in the log when it cannot be read."""
    try:
        return decode(msg.data, kind)
    except BadInput as error:
        log.warning("unreadable message dropped", subject=msg.subject, error=error.message)
        return None


def trace_headers(headers: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """`headers` with the current W3C trace context; None when there is nothing to carry."""
    carrier: dict[str, str] = dict(headers or {})
    if get_current():  # injecting nothing takes its time, too
        propagate.inject(carrier)
    return carrier or None


def trace_context(msg: Msg) -> Context:
    """The trace context that came with a message."""
    return propagate.extract(msg.headers or {})


def last_token(subject: str) -> str:
    """The request or instance that a subject names."""
    return subject.rpartition(".")[2]


T = TypeVar("T")


async def _until_there(look: Callable[[], Awaitable[T]], name: str) -> T:
    wait_s, longest_s = CONNECT_WAIT_S
    while True:
        try:
            return await look()
        except (NotFoundError, nats.errors.Error, TimeoutError) as error:
            log.debug("waiting for the bus to be set up", name=name, error=repr(error))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)


class _LinkLog:
    """Says in the log that the bus is away and that it is back, each once, not at every try between."""

    def __init__(self) -> None:
        self._away = False

    async def error(self, error: Exception) -> None:
        if not isinstance(error, OSError | nats.errors.UnexpectedEOF | nats.errors.NoServersError):
            log.warning("bus error", error=repr(error))
        elif not self._away:
            self._away = True
            log.warning("bus away", error=repr(error))

    async def connected(self) -> None:
        if self._away:
            self._away = False
            log.info("bus back")
