"""What the schedulers before this one left: outcomes not yet acknowledged, checkpoints of requests not finished."""

from typing import TypeVar

import msgspec
import nats.errors
import structlog
from nats.js.errors import APIError, NotFoundError

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.errors import BadInput
from shared.messages.checkpoints import Checkpoint
from shared.messages.requests import Outcome

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=msgspec.Struct)


class Recovery:
    """Requests up to `last_sequence` of their stream may have been served in part, or to their end."""

    def __init__(self, bus: Bus, last_sequence: int) -> None:
        self._bus = bus
        self._last_sequence = last_sequence

    @classmethod
    async def measure(cls, bus: Bus) -> "Recovery":
        """The requests that are there now."""
        info = await bus.js.stream_info(bus.subjects.stream("REQUESTS"))
        return cls(bus, info.state.last_seq)

    async def has_outcome(self, request_id: str, sequence: int) -> bool:
        """Whether the request, of this stream sequence, was finished and only not acknowledged."""
        subject = self._bus.subjects.outcomes(request_id)
        return await self._last("OUTCOMES", subject, sequence, Outcome) is not None

    async def checkpoint(self, request_id: str, sequence: int) -> Checkpoint | None:
        """The request's last block boundary, if it came to one."""
        return await self._last("CHECKPOINTS", self._bus.subjects.checkpoints(request_id), sequence, Checkpoint)

    async def _last(self, stream: str, subject: str, sequence: int, kind: type[M]) -> M | None:
        if sequence > self._last_sequence:
            return None
        try:
            message = await self._bus.js.get_last_msg(self._bus.subjects.stream(stream), subject, direct=True)
            return decode(message.data or b"", kind)
        except NotFoundError:
            return None
        except (nats.errors.Error, APIError, TimeoutError, BadInput) as error:
            log.warning("left by the scheduler before, but not readable", subject=subject, error=repr(error))
            return None
