"""Messages of a pull consumer, one by one as they come.

nats-py's `fetch(batch)` waits, once a first message is there, for the batch to fill or the time to pass; here a
pull request stays open and each message is handed on at once.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.errors import RetryLater

Handle = Callable[[Msg], Awaitable[None]]

BATCH = 512  # messages a pull request asks for
EXPIRES_S = 2.0  # how long one stays open; also the longest silence after a reconnect


async def consume(nc: Client, stream: str, consumer: str, handle: Handle) -> None:
    """Hand each message to `handle`, in order, until cancelled.

    Raises: RetryLater when the consumer is gone; whatever `handle` raises.
    """
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    request = msgspec.json.encode({"batch": BATCH, "expires": int(EXPIRES_S * 1e9)})
    inbox = nc.new_inbox()
    pull = _Pull(handle)
    subscription = await nc.subscribe(inbox, cb=pull.on_message)
    try:
        while True:
            pull.begin()
            await nc.publish(subject, request, reply=inbox)
            await pull.end()
    except nats.errors.Error as error:
        raise RetryLater(f"cannot consume {stream}: {error!r}") from error
    finally:
        if not nc.is_closed:
            await subscription.unsubscribe()


class _Pull:
    """One pull request after another: messages to the handler, the server's word on the request to `end`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._left = 0
        self._ended = asyncio.Event()
        self._failure: Exception | None = None

    def begin(self) -> None:
        self._left = BATCH
        self._ended.clear()

    async def end(self) -> None:
        """Wait until the request is used up, expired or lost with a connection."""
        try:
            async with asyncio.timeout(EXPIRES_S + 0.5):
                await self._ended.wait()
        except TimeoutError:
            pass
        if self._failure is not None:
            raise self._failure

    async def on_message(self, msg: Msg) -> None:
        headers = msg.headers or {}
        if "Status" in headers and not msg.data:
            self._hear(headers["Status"], headers.get("Description", ""))
            return
        self._left -= 1
        try:
            await self._handle(msg)
        except Exception as error:
            self._failure = error
        if self._left == 0 or self._failure is not None:
            self._ended.set()

    def _hear(self, status: str, description: str) -> None:
        if status == "503" or "Consumer Deleted" in description:
            self._failure = RetryLater(f"consumer gone: {status} {description}")
        self._ended.set()
