"""Reads stored messages of streams that allow direct reads, many with one request (NATS 2.11 or newer)."""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from functools import partial

import msgspec
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg

from shared.bus.client import JETSTREAM_S, Bus
from shared.bus.errors import bus_errors
from shared.errors import RetryLater
from shared.retry import retry

PAGE_MESSAGES, PAGE_BYTES = 100, 1 << 20  # small: to read one takes the time of the event loop


async def read_direct(bus: Bus, stream: str, request: Mapping[str, object]) -> tuple[list[RawStreamMsg], int]:
    """Send one request of NATS's direct reads. Returns: the messages of the reply, and the number of further ones.

    Raises: RetryLater if the bus does not answer.
    """
    found: list[RawStreamMsg] = []
    with bus_errors(f"read {stream}"):
        inbox = bus.nc.new_inbox()
        replies = await bus.nc.subscribe(inbox)
        try:
            await bus.nc.publish(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(request), reply=inbox)
            while not is_end(message := await replies.next_msg(timeout=JETSTREAM_S)):
                headers = message.headers or {}
                number = int(headers["Nats-Sequence"])
                found.append(RawStreamMsg(subject=headers["Nats-Subject"], seq=number, data=message.data))
        finally:
            await replies.unsubscribe()
    return found, int((message.headers or {}).get("Nats-Num-Pending", 0))


async def stream_pages(bus: Bus, stream: str, since: datetime) -> AsyncIterator[list[RawStreamMsg]]:
    """The messages of a stream that were stored between `since` and now, oldest first, at most a page of them in memory
    at a time. Waits while the bus does not answer."""
    last = (await bus.wait_for_stream(stream)).state.last_seq
    start: dict[str, object] = {"start_time": since.isoformat()}
    read = 0
    while read < last:
        request = {"batch": PAGE_MESSAGES, "max_bytes": PAGE_BYTES, **start}
        page, _ = await retry(partial(read_direct, bus, stream, request))
        if not page:
            return
        yield page
        read = page[-1].seq or 0
        start = {"seq": read + 1}


def is_end(message: Msg) -> bool:
    """Whether the message ends a reply. Raises: RetryLater if the reply is an error."""
    headers = message.headers or {}
    status = headers.get("Status")
    if status not in (None, "204", "404"):  # a message; the end; no message at all
        raise RetryLater(f"cannot read stored messages: {status} {headers.get('Description', '')}")
    return status is not None
