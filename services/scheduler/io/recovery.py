"""Reads the outcomes and checkpoints that earlier schedulers stored."""

from typing import Self, TypeVar

import msgspec
import structlog

from shared.bus.client import Bus
from shared.errors import RetryLater
from shared.messages.checkpoints import Checkpoint
from shared.messages.requests import Outcome

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=msgspec.Struct)


class Recovery:
    """Covers the requests up to `last_sequence` of their stream: an earlier scheduler may have served them."""

    def __init__(self, bus: Bus, last_sequence: int) -> None:
        self._bus = bus
        self._last_sequence = last_sequence

    @classmethod
    async def start(cls, bus: Bus) -> Self:
        """Cover the requests that are in the stream now."""
        info = await bus.js.stream_info(bus.subjects.stream("REQUESTS"))
        return cls(bus, info.state.last_seq)

    def covers(self, sequence: int) -> bool:
        """Whether an earlier scheduler may have served the request with this sequence in the stream."""
        return sequence <= self._last_sequence

    async def has_outcome(self, request_id: str) -> bool:
        """Whether the request is finished, and only not acknowledged."""
        return await self._last("OUTCOMES", self._bus.subjects.outcomes(request_id), Outcome) is not None

    async def checkpoint(self, request_id: str) -> Checkpoint | None:
        """The request's state at its last block boundary. Returns: None if it has not reached one."""
        return await self._last("CHECKPOINTS", self._bus.subjects.checkpoints(request_id), Checkpoint)

    async def _last(self, stream: str, subject: str, kind: type[M]) -> M | None:
        """Without an answer of the bus, the request is served from its start."""
        try:
            return await self._bus.last(stream, subject, kind)
        except RetryLater as error:
            log.warning("earlier scheduler's message not readable", error=str(error))
            return None
