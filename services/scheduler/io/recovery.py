"""Reads the outcomes and checkpoints that earlier schedulers stored."""

from typing import Self

from shared.bus.client import Bus, try_decode
from shared.bus.last_messages import LastMessages
from shared.messages.checkpoints import Checkpoint
from shared.messages.requests import Outcome


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
