"""The bus: NATS with JetStream, reduced to the operations that the services use."""

import asyncio
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
from nats.js.api import ConsumerConfig, Header, KeyValueConfig, ObjectStoreConfig, RawStreamMsg, StreamConfig
from nats.js.errors import APIError, BadRequestError, NotFoundError, ServerError
from nats.js.kv import KeyValue
from opentelemetry import propagate
from opentelemetry.context import Context, get_current

from shared.bus import subjects as declared
from shared.bus.codec import decode, encode
from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.bus.pull_consumer import consume
from shared.bus.reconnects import PING_S, Reconnects, limit_unanswered_time
from shared.bus.storage_limits import DISK_BYTES
from shared.bus.subjects import Subjects
from shared.bus.tls import bus_client
from shared.bus.users import inbox_prefix
from shared.errors import BadInput, RetryLater
from shared.retry import WAIT_INITIAL_S, retry
from shared.tasks import pause
from shared.urls import without_credentials

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")
L = TypeVar("L", StreamConfig, KeyValueConfig, ObjectStoreConfig)
DRAIN_TIMEOUT_S = 5.0  # limit of sending pending messages when a service ends
CONSUMER_RETRY_S = 1.0  # wait before a lost consumer is created again; longer only while this fails
WRONG_LAST_SEQUENCE = 10071  # the server's error code for an unexpected sequence
NO_ROOM = 10047  # the server's error code for a limit in bytes that it cannot reserve
TOUCH_S = 5.0  # interval of touches of the liveness file
SET_UP_CHECK_S = 0.5  # interval of checks for lost streams


class Bus:
    """One connection to the bus, for one cell. `nc` and `js` are public for subscriptions."""

    def __init__(self, client: Client, cell: str, reconnects: Reconnects, alive_file: str = "") -> None:
        self.nc = client
        self.reconnects = reconnects
        self.js: JetStreamContext = client.jetstream(timeout=10)
        self.subjects = Subjects(cell)
        self.is_live: Callable[[], bool] = lambda: True  # a service may add a condition for the liveness file
        self._alive = asyncio.create_task(self._keep_alive_file(Path(alive_file))) if alive_file else None

    @classmethod
    async def connect(cls, url: str, cell: str, *, name: str, alive_file: str = "", ca: str = "") -> "Bus":
        """Connect, with back-off while the server is unavailable; a lost connection reconnects automatically.

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
                await attempt.connect(url, **options)
            except (*BUS_ERRORS, OSError) as error:
                raise RetryLater(
                    f"cannot connect to the bus at {shown}: {str(error) or type(error).__name__}"
                ) from error
            return attempt

        client = await retry(connect)
        await connection_log.connected()
        limit_unanswered_time(client)
        return cls(client, cell, reconnects, alive_file)

    async def publish(self, subject: str, message: msgspec.Struct, headers: Mapping[str, str] | None = None) -> None:
        """Publish without waiting for storage (progress, step messages, cancels)."""
        await self.nc.publish(subject, encode(message), headers=trace_headers(headers))

    async def store(self, subject: str, message: msgspec.Struct, *, json: bool = False, if_first: bool = False) -> bool:
        """Publish to a stream and wait until the message is stored. With `if_first`, do nothing if the subject already
        holds a message.

        Returns: whether it is stored. Raises: QueueFull if the stream holds as many messages as it may, StorageFull if
        it holds as many bytes; RetryLater if it does not answer.
        """
        headers = trace_headers({Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: "0"} if if_first else None)
        with bus_errors(f"store on {subject}"):
            try:
                await self.js.publish(subject, encode(message, json=json), headers=headers)
            except APIError as error:
                if error.err_code != WRONG_LAST_SEQUENCE:
                    raise
                return False
        return True

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

    async def run_consumer(
        self,
        stream: str,
        config: ConsumerConfig,
        handle: Callable[[Msg], Awaitable[None]],
        before_create: Callable[[], Awaitable[None]] | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        """Pass each message of a stream to `handle` as it arrives, until cancelled. Creates the consumer at the start
        and CONSUMER_RETRY_S after a loss, each time after `before_create`.

        `is_own`: no other process uses the consumer. After a reconnect it is created again: messages that the old
        connection lost are delivered again, and so are those that are not acknowledged yet.
        """
        name, is_first = str(config.durable_name), True

        async def create() -> None:
            if before_create is not None:
                await before_create()
            if is_own and not is_first:
                with suppress(NotFoundError):
                    await self.js.delete_consumer(stream, name)
            await self.js.add_consumer(stream, config)

        while True:  # each loss starts a new back-off
            await _retry(f"create the consumer of {stream}", create, CONSUMER_RETRY_S)
            is_first = False
            consuming = consume(self.nc, stream, name, handle)
            try:
                with bus_errors(f"consume {stream}"):
                    if is_own:
                        await self.reconnects.run_until_next(consuming)
                        continue
                    await consuming
            except RetryLater as error:
                log.warning("consumer lost", stream=stream, error=str(error))
            await pause(CONSUMER_RETRY_S)

    async def bucket(self, name: str) -> KeyValue:
        """Bind to a bucket; waits until the set-up step has created it."""
        return await _retry(f"open the bucket {name}", partial(self.js.key_value, name))

    async def wait_for_stream(self, name: str) -> None:
        """Wait until the set-up step has created the stream."""
        await _retry(f"find the stream {name}", partial(self.js.stream_info, name))

    async def set_up(self, disk_bytes: int = DISK_BYTES) -> None:
        """Create or update every stream and bucket of the cell. Only the scheduler calls it."""
        for stream in declared.streams(self.subjects, disk_bytes):
            await _limited(stream, self._set_up_stream)
        for bucket in declared.buckets(self.subjects, disk_bytes):
            await _limited(bucket, self._set_up_bucket)
        for store in declared.object_stores(self.subjects, disk_bytes):
            await _limited(store, self._set_up_store)

    async def _set_up_stream(self, config: StreamConfig) -> None:
        try:
            await self.js.add_stream(config)
        except BadRequestError:  # it exists with other options
            await self.js.update_stream(config)

    async def _set_up_bucket(self, config: KeyValueConfig) -> None:
        try:
            await self.js.create_key_value(config)
        except BadRequestError:
            await self._limit(f"KV_{config.bucket}", config.max_bytes)

    async def _set_up_store(self, config: ObjectStoreConfig) -> None:
        try:
            await self.js.create_object_store(str(config.bucket), config)
        except BadRequestError:
            await self._limit(f"OBJ_{config.bucket}", config.max_bytes)

    async def _limit(self, stream: str, max_bytes: int | None) -> None:
        """Change the limit of an existing bucket; its other options stay as they are."""
        existing = (await self.js.stream_info(stream)).config
        if existing.max_bytes != max_bytes:
            await self.js.update_stream(existing.evolve(max_bytes=max_bytes))

    async def _keep_alive_file(self, path: Path) -> None:
        """Touch the liveness file until cancelled: its age is the time since the service was live. Raises: OSError."""
        while True:
            if self.is_live():
                path.touch()  # noqa: ASYNC240  (takes microseconds)
            await pause(TOUCH_S)

    async def ensure_set_up(self, disk_bytes: int = DISK_BYTES) -> None:
        """Repeat `set_up` while the server is unavailable or JetStream is not ready."""
        await _retry("set up the cell's streams", partial(self.set_up, disk_bytes))

    async def keep_set_up(self, on_loss: Callable[[], None], disk_bytes: int = DISK_BYTES) -> None:
        """Until cancelled, repeat `set_up` after a stream or bucket of the cell was lost: deleted, or in the memory of
        a server that restarted. Then call `on_loss` if step messages were lost with it."""
        while True:
            await pause(SET_UP_CHECK_S)
            try:
                missing = declared.stream_names(self.subjects) - await self._stream_names()
            except BUS_ERRORS:
                continue  # the server is unavailable
            if missing:
                await self.ensure_set_up(disk_bytes)  # completes a partial set-up too
                log.warning("streams set up again", lost=sorted(missing))
                if not missing.isdisjoint(map(self.subjects.stream, ("STEPS", "STEP_RESULTS"))):
                    on_loss()

    async def _stream_names(self) -> set[str]:
        """The names of all streams of the account. Raises: bus errors."""
        names = set[str]()
        while True:
            request = msgspec.json.encode({"offset": len(names)})
            reply = await self.nc.request("$JS.API.STREAM.NAMES", request, timeout=10)
            page = msgspec.json.decode(reply.data, type=_StreamNames)
            if page.error is not None:
                raise APIError.from_error(page.error)
            names.update(page.streams or ())
            if not page.streams or len(names) >= page.total:
                return names

    async def close(self) -> None:
        """Disconnect, after sending pending messages if the server is available."""
        if self._alive is not None:
            self._alive.cancel()
        if self.nc.is_connected:
            await self.nc.drain()
        elif not self.nc.is_closed:
            with suppress(OSError, RuntimeError):  # pending messages are lost; uvloop raises RuntimeError
                await asyncio.shield(self.nc.close())


async def _retry(action: str, call: Callable[[], Awaitable[T]], wait_initial_s: float = WAIT_INITIAL_S) -> T:
    """Repeat `call` while the bus fails or does not answer; `action` names it in the log."""

    async def attempt() -> T:
        with bus_errors(action):
            return await call()

    return await retry(attempt, wait_initial_s=wait_initial_s)


async def _limited(config: L, set_up: Callable[[L], Awaitable[None]]) -> None:
    """Set up a stream or bucket, without a limit if the server has too little room: the cell then serves as before."""
    try:
        await set_up(config)
    except ServerError as error:
        if error.err_code != NO_ROOM:
            raise
        name = config.name if isinstance(config, StreamConfig) else config.bucket
        fix = "raise max_file_store of NATS, or lower DILASERVE_MAX_STORED_BYTES"
        log.warning("NATS cannot reserve the bytes of a stream; it has no limit", stream=name, fix=fix)
        await set_up(config.evolve(max_bytes=-1))


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


class _StreamNames(msgspec.Struct, frozen=True):
    """One page of the server's list of streams; `streams` is None if there are none."""

    total: int = 0
    streams: list[str] | None = None
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
