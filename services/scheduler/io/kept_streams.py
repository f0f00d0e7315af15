"""Keeps the streams of the cell: sets lost ones up again, and reports step messages that were lost.

The streams of step messages are in memory, and have no acknowledgement. A server that restarts without the other copies
of a stream brings it back empty. While a cluster has no leader for a stream, its messages are dropped.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from shared.bus.client import Bus
from shared.bus.watch import Look, StreamState

log = structlog.get_logger(__name__)

SET_UP_S = 10.0  # limit of a set-up, for which the other followers of the looks wait


class KeptStreams:
    """Sets up the streams and buckets that were deleted, or were lost with the memory of a server that restarted."""

    def __init__(self, bus: Bus, set_up: Callable[[], Awaitable[None]], on_steps_lost: Callable[[], None]) -> None:
        """`set_up()` creates what is missing of the cell, also after a partial set-up."""
        self._set_up = set_up
        self._on_steps_lost = on_steps_lost
        self._last: dict[str, StreamState] = {}  # of the streams of step messages, when they last had a leader
        self.step_streams = [bus.subjects.stream(kind) for kind in ("STEPS", "STEP_RESULTS")]

    async def keep(self, look: Look) -> None:
        if look.missing:
            try:
                async with asyncio.timeout(SET_UP_S):
                    await self._set_up()
            except TimeoutError:  # as while too few servers of a cluster run; the next look tries again
                return
            log.warning("streams set up again", lost=sorted(look.missing))
        lost = set(self.step_streams).intersection(look.missing)
        for name in lost:
            self._last.pop(name, None)  # the loss is reported now, and not by the new stream's numbers again
        for name in self.step_streams:
            now = look.streams.get(name)
            if now is None or (now.cluster is not None and now.cluster.leader is None):
                continue
            if may_have_lost_messages(self._last.get(name, now), now):
                lost.add(name)
            self._last[name] = now
        if lost:
            log.warning("step messages lost", streams=sorted(lost))
            self._on_steps_lost()


def may_have_lost_messages(before: StreamState, now: StreamState) -> bool:
    """Whether messages may have been lost between two states of a stream: it was created again, its cluster has
    another leader or other members, or its last sequence fell. In both it had a leader if it needs one."""
    is_same = (now.created, now.cluster) == (before.created, before.cluster)
    return not is_same or now.state.last_seq < before.state.last_seq
