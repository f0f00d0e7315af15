"""Reads the outcomes and checkpoints that earlier schedulers stored."""

import asyncio
from functools import partial
from itertools import islice
from typing import Self

from nats.js.api import RawStreamMsg

from shared.bus.client import Bus, try_decode
from shared.bus.direct_reads import read_direct
from shared.messages.checkpoints import Checkpoint
from shared.messages.requests import Outcome
from shared.retry import retry

MAX_SUBJECTS = 1000  # of one request; the server has at most 1,024 answers


class LastMessages:
    """The last messages of one stream that allows direct reads of many subjects (NATS 2.11 or newer). Reads that begin
    together share a request."""

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
        pending = 1
        while pending:  # a reply of many bytes has several parts
            request = {"multi_last": [each for each in subjects if each not in found]}
            messages, pending = await read_direct(self._bus, self._stream, request)
            found.update({str(message.subject): message for message in messages})
        return found


class Recovery:
    """Covers the requests up to `last_sequence` of their stream: an earlier scheduler may have served them."""

    def __init__(self, bus: Bus, last_sequence: int) -> None:
        self._subjects = bus.subjects
        self._last_sequence = last_sequence
        self._outcomes = LastMessages(bus, bus.subjects.stream("OUTCOMES"))
        self._checkpoints = LastMessages(bus, bus.subjects.stream("CHECKPOINTS"))

    @classmethod
    async def start(cls, bus: Bus) -> Self:
        """Cover the requests that are in the stream now. Waits for the bus."""
        requests = await bus.wait_for_stream(bus.subjects.stream("REQUESTS"))
        return cls(bus, requests.state.last_seq)

    def covers(self, sequence: int) -> bool:
        """Whether an earlier scheduler may have served the request with this sequence in the stream."""
        return sequence <= self._last_sequence

    async def has_outcome(self, request_id: str) -> bool:
        """Whether the request is finished, and only not acknowledged."""
        stored = await self._outcomes.read(self._subjects.outcomes(request_id))
        outcome = try_decode(stored, Outcome) if stored is not None else None
        return outcome is not None and outcome.is_final

    async def checkpoint(self, request_id: str) -> Checkpoint | None:
        """The request's state at its last block boundary. Returns: None if it has not reached one."""
        stored = await self._checkpoints.read(self._subjects.checkpoints(request_id))
        return try_decode(stored, Checkpoint) if stored is not None else None
