"""Reads the stored messages of a stream at once."""

from contextlib import suppress
from typing import Any

from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RawStreamMsg
from nats.js.errors import NotFoundError

from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS

READ_TIMEOUT_S = 5.0  # limit of one fetch, which ends without an error if some of its messages arrive later
MAX_FETCH = 1000  # messages


async def read_stream(bus: Bus, stream: str, subject: str, **position: Any) -> list[Msg]:
    """The messages on `subject`, oldest first; `position` is the consumer's deliver policy and its start. A watcher of
    nats-py may instead end before its first message. Raises: BUS_ERRORS."""
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, inactive_threshold=10, **position)
    subscription = await bus.js.pull_subscribe(subject, stream=stream, config=config)
    try:
        pending = (await subscription.consumer_info()).num_pending or 0
        messages: list[Msg] = []
        while len(messages) < pending:
            some = min(pending - len(messages), MAX_FETCH)
            fetched = await subscription.fetch(some, timeout=READ_TIMEOUT_S)
            if not fetched:  # the consumer is lost, such as with its server
                raise TimeoutError
            messages += fetched
            pending = min(pending, len(messages) + messages[-1].metadata.num_pending)  # some may have expired
        return messages
    finally:
        with suppress(*BUS_ERRORS):
            await subscription.unsubscribe()


async def read_last(bus: Bus, stream: str, subject: str) -> list[Msg | RawStreamMsg]:
    """The last message of each subject that matches `subject`. Raises: BUS_ERRORS."""
    last = {"deliver_policy": DeliverPolicy.LAST_PER_SUBJECT}
    found: dict[str, Msg | RawStreamMsg] = {msg.subject: msg for msg in await read_stream(bus, stream, subject, **last)}
    subjects = (await bus.js.stream_info(stream, subjects_filter=subject)).state.subjects or {}
    for name in subjects.keys() - found.keys():  # the bus skips messages that are replaced during the read
        with suppress(NotFoundError):  # removed since
            found[name] = await bus.js.get_last_msg(stream, name)
    return list(found.values())
