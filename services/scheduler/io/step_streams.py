"""Notices that the streams of step messages lost some: they are in memory, and have no acknowledgement.

A server that restarts without the other copies of a stream brings it back empty. While a cluster has no leader for a
stream, its messages are dropped.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.errors import BUS_ERRORS
from shared.errors import BadInput
from shared.tasks import pause

log = structlog.get_logger(__name__)

CHECK_S = 0.25  # interval of checks
ANSWER_S = 0.5  # limit of an answer


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """`leader`: the server that leads the stream in a cluster; None: there is no cluster."""

    leader: str | None
    last_sequence: int


def has_lost_messages(before: StreamPosition, now: StreamPosition) -> bool:
    """Whether messages may have been lost between two positions of one stream."""
    return now.leader != before.leader or now.last_sequence < before.last_sequence


class StepStreamWatch:
    """Compares the streams of step messages with their last known positions."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._last: dict[str, StreamPosition] = {}

    async def run(self, on_loss: Callable[[], None]) -> None:
        """Call `on_loss` after each loss, until cancelled."""
        while True:
            if lost := await self.look():
                log.warning("step messages lost", streams=lost)
                on_loss()
            await pause(CHECK_S)

    async def look(self) -> list[str]:
        """The streams that may have lost messages since the last look at which they answered."""
        names = [self._bus.subjects.stream(kind) for kind in ("STEPS", "STEP_RESULTS")]
        positions = await asyncio.gather(*(_position(self._bus, name) for name in names))
        now = {name: position for name, position in zip(names, positions, strict=True) if position is not None}
        known, self._last = self._last, self._last | now
        return [name for name in now if name in known and has_lost_messages(known[name], now[name])]


async def _position(bus: Bus, stream: str) -> StreamPosition | None:
    """Returns: None if the stream does not answer, or its cluster has not chosen its leader yet."""
    try:
        reply = await bus.nc.request(f"$JS.API.STREAM.INFO.{stream}", timeout=ANSWER_S)
        info = decode(reply.data, _StreamInfo)
    except (*BUS_ERRORS, BadInput):
        return None
    if info.state is None or (info.cluster is not None and info.cluster.leader is None):
        return None
    return StreamPosition(info.cluster.leader if info.cluster else None, info.state.last_seq)


class _State(msgspec.Struct):
    last_seq: int


class _Cluster(msgspec.Struct):
    leader: str | None = None


class _StreamInfo(msgspec.Struct):
    """The part of a stream's description that is read; an error has no state."""

    state: _State | None = None
    cluster: _Cluster | None = None
