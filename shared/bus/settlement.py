"""Settles JetStream messages: acknowledges, redelivers or discards each one.

How long the bus waits for an acknowledgement is in the consumers of `subjects.py`. A request is acknowledged once its
outcome is stored: `services/scheduler/io/outcome_store.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog
from nats.aio.msg import Msg

from shared.bus.errors import BUS_ERRORS
from shared.errors import BadInput, RetryLater

log = structlog.get_logger(__name__)

REDELIVERY_DELAY_S = 1.0


async def acknowledge(msg: Msg) -> None:
    """The message's work is done. If the bus does not answer, it delivers the message again."""
    with suppress(*BUS_ERRORS):
        await msg.ack()


async def redeliver(msg: Msg, delay_s: float = 0.0) -> None:
    """Have the bus deliver the message again, to this consumer or another, after `delay_s` seconds."""
    with suppress(*BUS_ERRORS):
        await msg.nak(delay=delay_s or None)


async def discard(msg: Msg, error: BadInput) -> None:
    """Remove a message that cannot be read; `error` goes to the log."""
    log.warning("message discarded", subject=msg.subject, error=error.message)
    with suppress(*BUS_ERRORS):
        await msg.term()


@asynccontextmanager
async def settled(msg: Msg) -> AsyncIterator[None]:
    """Settle the message when the block ends: acknowledge it if the block succeeds, redeliver it after
    REDELIVERY_DELAY_S on RetryLater and at once on cancellation, discard it on BadInput."""
    try:
        yield
    except asyncio.CancelledError:
        await redeliver(msg)
        raise
    except RetryLater as error:
        log.warning("message redelivered", subject=msg.subject, error=str(error), delay_s=REDELIVERY_DELAY_S)
        await redeliver(msg, REDELIVERY_DELAY_S)
    except BadInput as error:
        await discard(msg, error)
    else:
        await acknowledge(msg)
