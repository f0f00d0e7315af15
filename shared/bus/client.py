"""The bus: NATS with JetStream, reduced to the operations that the services use."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, Header, RawStreamMsg, StreamInfo
from nats.js.errors import APIError, NotFoundError
from nats.js.kv import KeyValue
from opentelemetry import propagate
from opentelemetry.context import Context, get_current

from shared.bus.codec import decode, encode
from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.bus.kept_consumer import KeptConsumer
from shared.bus.reconnects import PING_S, Reconnects, limit_unanswered_time
from shared.bus.set_up import set_up
from shared.bus.storage_limits import DISK_BYTES
from shared.bus.subjects import MAX_UNRENEWED_S, Subjects
from shared.bus.tls import bus_client
from shared.bus.users import inbox_prefix
from shared.errors import BadInput, RetryLater, StorageFull
from shared.messages.requests import Outcome
from shared.retry import retry
from shared.tasks import pause
from shared.urls import server_urls, without_credentials

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")
DRAIN_TIMEOUT_S = 5.0  # limit of sending pending messages when a service ends
JETSTREAM_S = 2.0  # limit of one call: a server that fails loses calls, and another one answers them when repeated
STORE_S = 10.0  # limit of storing a message; longer than a cluster usually takes to replace a server
HEADER_BYTES = 1024  # of a message, within NATS's limit: a server closes the connection of a client that exceeds it
STORE_RETRY_S = 0.5  # longest wait between two attempts to store a message
WRONG_LAST_SEQUENCE = 10071  # the server's error code for an unexpected sequence
TOUCH_S = 5.0  # interval of touches of the liveness file
END_CHECK_S = 0.5  # interval of checks whether the connection has ended


class Bus:
    """One connection to the bus, for one cell. `nc` and `js` are public for subscriptions.

    `closed` is set when the connection has ended for good: by `close`, or by an error of the server, such as when it no
    longer accepts the user. Then only a new connection helps.
    """

    def __init__(self, client: Client, cell: str, reconnects: Reconnects, alive_file: str = "") -> None:
        self.nc = client
        self.closed = asyncio.Event()
        self.reconnects = reconnects
        self.js: JetStreamContext = client.jetstream(timeout=JETSTREAM_S)
        self.subjects = Subjects(cell)
        self.store_failure: tuple[float, str] | None = None  # of the last `store`: its monotonic time, and its text
        self.renewed_s: float | None = None  # monotonic time of the last renewal of a lease or registration, if any
        self._ending = asyncio.create_task(self._report_end())
        self._alive = asyncio.create_task(self._keep_alive_file(Path(alive_file))) if alive_file else None

    @classmethod
    async def connect(cls, url: str, cell: str, *, name: str, alive_file: str = "", ca: str = "") -> "Bus":
        """Connect to one of the servers in `url`, with back-off while none is available; a lost connection reconnects
        automatically, to any of them.

        `alive_file`, if given, is touched while the event loop runs and `is_live` holds. `ca`: as `bus_client`.
        Raises: BadInput if `ca` has no readable certificates.
        """
        connection_log, reconnects, shown = _ConnectionLog(), Reconnects(), without_credentials(url)

        async def reconnected() -> None:
            await connection_log.connected()
            limit_unanswered_time(client)
            reconnects.report()

        options: dict[str, Any] = {  # nats-py declares its seconds as whole numbers
            "name": name,
            "inbox_prefix": inbox_prefix(url),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.25,
            "allow_reconnect": True,
            "error_cb": connection_log.error,
            "reconnected_cb": reconnected,
            "connect_timeout": 2,
            "ping_interval": PING_S,
            "max_outstanding_pings": 2,
            "drain_timeout": DRAIN_TIMEOUT_S,
        }

        async def connect() -> Client:
            attempt = bus_client(url, ca)
            try:
                await attempt.connect(server_urls(url), **options)
            except (*BUS_ERRORS, OSError) as error:
                raise RetryLater(
                    f"cannot connect to the bus at {shown}: {str(error) or type(error).__name__}"
                ) from error
            except asyncio.CancelledError:
                await _abandon(attempt)
                raise
            return attempt

        client = await retry(connect)
        await connection_log.connected()
        limit_unanswered_time(client)
        return cls(client, cell, reconnects, alive_file)

    async def publish(self, subject: str, message: msgspec.Struct, headers: Mapping[str, str] | None = None) -> None:
        """Publish without waiting for storage (progress, step messages, cancels)."""
        await self.nc.publish(subject, encode(message), headers=trace_headers(headers))

    async def store(self, subject: str, message: msgspec.Struct, *, json: bool = False, if_first: bool = False) -> bool:
        """Publish to a stream and wait until the message is stored; repeat this while the stream does not answer, so
        that it may hold the message twice. With `if_first`, do nothing if the subject already holds a message.

        Returns: whether it is stored now. Raises: BadInput if the message is larger than the server takes; StorageFull
        if the stream holds as many messages or bytes as it may; RetryLater if it does not answer within STORE_S.
        """
        headers = trace_headers({Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: "0"} if if_first else None)
        data = encode(message, json=json)
        if len(data) > (most := self.nc.max_payload - HEADER_BYTES):
            raise BadInput(
                f"the {type(message).__name__} has {len(data)} bytes; the bus takes {most}, by its max_payload"
            )

        async def attempt() -> bool:
            with bus_errors(f"store on {subject}"):
                try:
                    await self.js.publish(subject, data, headers=headers)
                except APIError as error:
                    if error.err_code != WRONG_LAST_SEQUENCE:
                        raise
                    return False
            return True

        def is_silence(error: Exception) -> bool:
            return isinstance(error, RetryLater) and not isinstance(error, StorageFull)

        try:
            is_stored = await retry(attempt, wait_max_s=STORE_RETRY_S, timeout_s=STORE_S, is_retryable=is_silence)
        except RetryLater as error:
            self.store_failure = None if isinstance(error, StorageFull) else (time.monotonic(), str(error))
            raise
        self.store_failure = None
        return is_stored

    async def last(self, stream: str, subject: str, kind: type[M], *, direct: bool = True) -> M | None:
        """The last message of a subject in the stream of the kind `stream`. `direct`: the stream allows raw reads.

        Returns: None if there is no valid one. Raises: RetryLater if the bus does not answer.
        """
        with bus_errors(f"read {subject}"):
            try:
                stored = await self.js.get_last_msg(self.subjects.stream(stream), subject, direct=direct)
            except NotFoundError:
                return None
        return try_decode(stored, kind)

    async def outcome(self, request_id: str) -> Outcome | None:
        """The stored outcome of a request, or None. Raises: RetryLater if the bus does not answer."""
        return await self.last("OUTCOMES", self.subjects.outcomes(request_id), Outcome)

    async def run_consumer(
        self,
        stream: str,
        config: ConsumerConfig,
        handle: Callable[[Msg], Awaitable[None]],
        before_create: Callable[[], Awaitable[None]] | None = None,
        on_create: Callable[[ConsumerInfo], None] = lambda _: None,
        *,
        is_exclusive: bool = False,
    ) -> None:
        """Pass each message of a stream to `handle` as it arrives, until cancelled. Creates the consumer at the start
        and after a loss, each time between `before_create` and `on_create`. A consumer that only does not answer is
        asked again: a cluster is about to choose the server that leads it.

        `is_exclusive`: no other process uses the consumer. After a reconnect it is created again: messages that the old
        connection lost are delivered again, and so are those that are not acknowledged yet.
        """
        consumer = KeptConsumer(self.nc, self.js, stream, config, handle, before_create, on_create, is_exclusive)
        while True:
            await consumer.create()
            consuming = consumer.consume_while_it_exists()
            await (self.reconnects.run_until_next(consuming) if is_exclusive else consuming)

    async def bucket(self, name: str) -> KeyValue:
        """Bind to a bucket; waits until the set-up step has created it."""
        return await until_answered(f"open the bucket {name}", partial(self.js.key_value, name))

    async def wait_for_stream(self, name: str) -> StreamInfo:
        """Wait until the set-up step has created the stream. Returns: its present state."""
        return await until_answered(f"find the stream {name}", partial(self.js.stream_info, name))

    async def set_up(self, disk_bytes: int = DISK_BYTES, replicas: int = 1) -> None:
        """As `set_up.set_up`, repeated while the server is unavailable or JetStream is not ready. Only the scheduler
        calls it. Raises: BadInput."""
        await until_answered("set up the cell's streams", partial(set_up, self.js, self.subjects, disk_bytes, replicas))

    def is_live(self) -> bool:
        """Whether what the service must renew was renewed. While the bus is unavailable, a restart would not help."""
        unrenewed_s = 0.0 if self.renewed_s is None else time.monotonic() - self.renewed_s
        return unrenewed_s < MAX_UNRENEWED_S or not self.nc.is_connected

    async def _report_end(self) -> None:
        """Set `closed` once the client has ended: it does not call `closed_cb` if data were left to send."""
        while not self.nc.is_closed:
            await pause(END_CHECK_S)
        self.closed.set()

    async def _keep_alive_file(self, path: Path) -> None:
        """Touch the liveness file until cancelled: its age is the time since the service was live. Raises: OSError."""
        while True:
            if self.is_live():
                path.touch()  # noqa: ASYNC240  (takes microseconds)
            await pause(TOUCH_S)

    async def stream_names(self) -> set[str]:
        """The names of all streams of the account. Raises: bus errors."""
        return await self._names("$JS.API.STREAM.NAMES")

    async def consumer_names(self, stream: str) -> set[str]:
        """The names of a stream's consumers. A list of their states would wait for each that does not answer.

        Raises: bus errors.
        """
        return await self._names(f"$JS.API.CONSUMER.NAMES.{stream}")

    async def _names(self, subject: str) -> set[str]:
        """The names of all streams of the account, or of all consumers of a stream. Raises: bus errors."""
        names = set[str]()
        while True:
            request = msgspec.json.encode({"offset": len(names)})
            reply = await self.nc.request(subject, request, timeout=JETSTREAM_S)
            page = msgspec.json.decode(reply.data, type=_Names)
            if page.error is not None:
                raise APIError.from_error(page.error)
            found = page.streams or page.consumers or []
            names.update(found)
            if not found or len(names) >= page.total:
                return names

    async def wait_until_closed(self) -> None:
        """Wait until an error has ended the connection for good, and log it."""
        await self.closed.wait()
        log.error("the bus has ended the connection", error=repr(self.nc.last_error))

    async def close(self) -> None:
        """Disconnect, after sending pending messages if the server is available."""
        if self._alive is not None:
            self._alive.cancel()
        if self.nc.is_connected:
            await self.nc.drain()
        elif not self.nc.is_closed:
            await _abandon(self.nc)
        self._ending.cancel()
        self.closed.set()

    async def __aenter__(self) -> "Bus":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _abandon(client: Client) -> None:
    """Disconnect; pending messages are lost."""
    with suppress(OSError, RuntimeError, TypeError):  # uvloop raises RuntimeError, asyncio's streams also TypeError
        await asyncio.shield(client.close())


async def until_answered(action: str, call: Callable[[], Awaitable[T]]) -> T:
    """Repeat `call` while the bus fails or does not answer; `action` names it in the log."""

    async def attempt() -> T:
        with bus_errors(action):
            return await call()

    return await retry(attempt)


def try_decode(msg: Msg | RawStreamMsg, kind: type[M]) -> M | None:
    """The decoded message; None, and a log line, if it is invalid."""
    try:
        return decode(msg.data or b"", kind)
    except BadInput as error:
        log.warning("invalid message dropped", subject=msg.subject, error=error.message)
        return None


def trace_headers(headers: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """`headers` with the current W3C trace context; None if both are empty."""
    carrier: dict[str, str] = dict(headers or {})
    if get_current():  # injecting an empty context takes time too
        propagate.inject(carrier)
    return carrier or None


def trace_context(msg: Msg) -> Context:
    """The trace context in a message's headers."""
    return propagate.extract(msg.headers or {})


def last_token(subject: str) -> str:
    """The last token of a subject: a request or an instance."""
    return subject.rpartition(".")[2]


class _Names(msgspec.Struct, frozen=True):
    """One page of the server's list of streams or of consumers; None if there are none."""

    total: int = 0
    streams: list[str] | None = None
    consumers: list[str] | None = None
    error: dict[str, object] | None = None


class _ConnectionLog:
    """Logs once when the bus becomes unavailable or refuses the user, and once when it is available again."""

    def __init__(self) -> None:
        self._lost = False
        self._is_refused = False

    async def error(self, error: Exception) -> None:
        if "authorization violation" in str(error).lower():
            if not self._is_refused:
                log.warning("the bus refuses the user or the password of DILASERVE_NATS_URL")
            self._is_refused = self._lost = True
        elif not isinstance(error, OSError | nats.errors.UnexpectedEOF | nats.errors.NoServersError):
            log.warning("bus error", error=repr(error))
        elif not self._lost:
            self._lost = True
            log.warning("bus unavailable", error=repr(error))

    async def connected(self) -> None:
        if self._lost:
            self._lost = self._is_refused = False
            log.info("bus available again")
