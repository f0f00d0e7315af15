"""A pull consumer that is created again after a loss, and whose requests are repeated while it does not answer.

A cluster takes seconds to choose another leader for a consumer whose server failed. It may also choose the failed
server as the leader of a new consumer, which then does not answer. Such a consumer is deleted and created again, so
that the cluster chooses another leader.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo
from nats.js.errors import NotFoundError

from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.bus.pull_consumer import ConsumerSilent, consume
from shared.retry import retry

log = structlog.get_logger(__name__)

RETRY_S = 0.25  # between two attempts
ANSWER_S = 0.5  # limit of the lookup of the consumer
MIN_CREATE_S, MAX_CREATE_S = 0.5, 10.0  # limit of the creation
CREATE_GROWTH = 1.1  # of the limit from one attempt to the next, so that a slow server can answer in time


@dataclass(slots=True)
class KeptConsumer:
    """`is_exclusive`: no other process uses the consumer. One that exists is deleted first: the bus then redelivers all
    messages that are not acknowledged."""

    _nc: Client
    _js: JetStreamContext
    _stream: str
    _config: ConsumerConfig
    _handle: Callable[[Msg], Awaitable[None]]
    _before_create: Callable[[], Awaitable[None]] | None = None
    _on_create: Callable[[ConsumerInfo], None] = lambda _: None
    _is_exclusive: bool = False
    _is_silent: bool = False  # the last creation, or the pull requests, had no answer

    async def create(self) -> None:
        """Create the consumer until the bus answers."""
        limit_s = MIN_CREATE_S

        async def attempt() -> None:
            nonlocal limit_s
            within_s, limit_s = limit_s, min(CREATE_GROWTH * limit_s, MAX_CREATE_S)
            with bus_errors(f"create the consumer of {self._stream}"):
                try:
                    await self._create(within_s)
                except TimeoutError:
                    self._is_silent = True
                    raise

        await retry(attempt, wait_initial_s=RETRY_S, wait_max_s=RETRY_S)
        self._is_silent = False

    async def _create(self, limit_s: float) -> None:
        if self._before_create is not None:
            async with asyncio.timeout(limit_s):
                await self._before_create()
        if self._is_exclusive or self._is_silent:
            with suppress(NotFoundError, TimeoutError):  # a consumer without a leader is deleted without an answer
                async with asyncio.timeout(limit_s / 2):
                    await self._js.delete_consumer(self._stream, str(self._config.durable_name))
        self._on_create(await self._js.add_consumer(self._stream, self._config, timeout=limit_s))

    async def consume_while_it_exists(self) -> None:
        """Pass each message to the handler until the consumer is lost; an exclusive one, until it does not answer."""
        is_first = True

        async def attempt() -> None:
            nonlocal is_first
            if not is_first and (self._is_exclusive or await self._is_lost()):
                return
            is_first = False
            with bus_errors(f"consume {self._stream}"):
                try:
                    await consume(self._nc, self._stream, str(self._config.durable_name), self._handle)
                except ConsumerSilent as error:
                    log.warning("creating a consumer again", reason=str(error))
                    self._is_silent = True

        await retry(attempt, wait_initial_s=RETRY_S, wait_max_s=RETRY_S)

    async def _is_lost(self) -> bool:
        with suppress(*BUS_ERRORS):
            try:
                await self._js.consumer_info(self._stream, str(self._config.durable_name), timeout=ANSWER_S)
            except NotFoundError:
                return True
        return False
