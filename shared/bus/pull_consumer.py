"""Passes each message of a pull consumer on as it arrives.

nats-py's `fetch(batch)` waits until the batch is full or its time is over. Here a pull request stays open, and each
message is passed on immediately.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.errors import RetryLater

Handle = Callable[[Msg], Awaitable[None]]

BATCH, BATCH_BYTES = 4096, 32 << 20  # messages and their bytes per pull request; one message has at most 8 MiB
EXPIRES_S = 2.0  # lifetime of a pull request; one that a reconnect lost is repeated 0.5 s after its end
SILENT_PULLS = 3  # requests in a row without a message or a status, after which the consumer counts as silent


class ConsumerSilent(RetryLater):
    """A server has the consumer, but answers no pull request."""


async def consume(nc: Client, stream: str, consumer: str, handle: Handle) -> None:
    """Pass each message to `handle`, in order, until cancelled.

    Raises: RetryLater if the consumer is lost; ConsumerSilent; bus errors; errors of `handle`.
    """
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    request = msgspec.json.encode({"batch": BATCH, "max_bytes": BATCH_BYTES, "expires": int(EXPIRES_S * 1e9)})
    inbox = nc.new_inbox()
    pull = _Pull(handle)
    subscription = await nc.subscribe(inbox, cb=pull.on_message)
    silent = 0
    try:
        while True:
            pull.begin()
            await nc.publish(subject, request, reply=inbox)
            silent = 0 if await pull.end() or not nc.is_connected else silent + 1
            if silent == SILENT_PULLS:
                raise ConsumerSilent(f"the consumer {consumer} does not answer")
    finally:
        if not nc.is_closed:
            await subscription.unsubscribe()


class _Pull:
    """Consecutive pull requests: passes messages to the handler, and ends a request by the server's status."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._remaining = 0
        self._is_answered = self._is_handling = False
        self._ended = asyncio.Event()
        self._failure: Exception | None = None

    def begin(self) -> None:
        self._remaining = BATCH
        self._is_answered = False
        self._ended.clear()

    async def end(self) -> bool:
        """Wait until the request is used up or expired, or was lost with a connection. Returns: whether the server sent
        a message or a status; also true while a message is being handled, as an answer may wait behind it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EXPIRES_S + 0.5):
                await self._ended.wait()
        if self._failure is not None:
            raise self._failure
        return self._is_answered or self._is_handling

    async def on_message(self, msg: Msg) -> None:
        self._is_answered = True
        headers = msg.headers or {}
        if "Status" in headers and not msg.reply:  # a message of the stream, whose sender chose the header, has a reply
            status, description = headers["Status"], headers.get("Description", "")
            if status == "503" or "Consumer Deleted" in description:
                self._failure = RetryLater(f"consumer lost: {status} {description}")
            self._ended.set()
            return
        self._remaining -= 1
        self._is_handling = True
        try:
            await self._handle(msg)
        except Exception as error:
            self._failure = error
        self._is_handling = False
        if self._remaining == 0 or self._failure is not None:
            self._ended.set()
