"""Reads the last messages of many subjects of a stream with few requests (NATS 2.11 or newer)."""

import asyncio
from functools import partial
from itertools import islice

import msgspec
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg

from shared.bus.client import JETSTREAM_S, Bus
from shared.bus.errors import bus_errors
from shared.errors import RetryLater
from shared.retry import retry

MAX_SUBJECTS = 1000  # of one request; the server has at most 1,024 answers


class LastMessages:
    """The last messages of one stream that allows direct reads. Reads that begin together share a request."""

    def __init__(self, bus: Bus, stream: str) -> None:
        self._bus = bus
        self._stream = stream
        self._asked: dict[str, list[asyncio.Future[RawStreamMsg | None]]] = {}  # by subject, the earliest first
        self._reading: asyncio.Task[None] | None = None

    async def read(self, subject: str) -> RawStreamMsg | None:
        """The last message of a subject; waits while the bus does not answer. Returns: None if there is none."""
        answer: asyncio.Future[RawStreamMsg | None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(subject, []).append(answer)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_asked())
        return await answer

    async def _read_asked(self) -> None:
        while subjects := list(islice(self._asked, MAX_SUBJECTS)):
            found = await retry(partial(self._read_many, subjects))
            for subject in subjects:
                for answer in self._asked.pop(subject):
                    if not answer.done():  # its reader was cancelled
                        answer.set_result(found.get(subject))

    async def _read_many(self, subjects: list[str]) -> dict[str, RawStreamMsg]:
        """The last messages by their subjects. Raises: RetryLater if the bus does not answer."""
        found: dict[str, RawStreamMsg] = {}
        with bus_errors(f"read the last messages of {self._stream}"):
            inbox = self._bus.nc.new_inbox()
            replies = await self._bus.nc.subscribe(inbox)
            try:
                is_complete = False
                while not is_complete:  # a reply of many bytes has several parts
                    request = msgspec.json.encode({"multi_last": [each for each in subjects if each not in found]})
                    await self._bus.nc.publish(f"$JS.API.DIRECT.GET.{self._stream}", request, reply=inbox)
                    while not is_end(message := await replies.next_msg(timeout=JETSTREAM_S)):
                        subject = (message.headers or {})["Nats-Subject"]
                        found[subject] = RawStreamMsg(subject=subject, data=message.data)
                    is_complete = not int((message.headers or {}).get("Nats-Num-Pending", 0))
            finally:
                await replies.unsubscribe()
        return found


def is_end(message: Msg) -> bool:
    """Whether the message ends a reply. Raises: RetryLater if the reply is an error."""
    headers = message.headers or {}
    status = headers.get("Status")
    if status not in (None, "204", "404"):  # a message; the end; no message at all
        raise RetryLater(f"cannot read the last messages: {status} {headers.get('Description', '')}")
    return status is not None
