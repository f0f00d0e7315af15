"""Notices that the streams of step messages lost some: they are in memory, and have no acknowledgement. Pure.

A server that restarts without the other copies of a stream brings it back empty. While a cluster has no leader for a
stream, its messages are dropped.
"""

from dataclasses import dataclass
from typing import Self

from shared.bus.subjects import Subjects
from shared.bus.watch import Look, StreamState


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """`leader`: the server that leads the stream in a cluster; None: there is no cluster."""

    leader: str | None
    last_sequence: int

    @classmethod
    def of(cls, stream: StreamState) -> Self | None:
        """Returns: None if its cluster has not chosen a leader yet."""
        if stream.cluster is not None and stream.cluster.leader is None:
            return None
        return cls(stream.cluster.leader if stream.cluster else None, stream.state.last_seq)


def has_lost_messages(before: StreamPosition, now: StreamPosition) -> bool:
    """Whether messages may have been lost between two positions of one stream."""
    return now.leader != before.leader or now.last_sequence < before.last_sequence


class StepStreams:
    """Compares the streams of step messages with their last known positions."""

    def __init__(self, subjects: Subjects) -> None:
        self.names = [subjects.stream(kind) for kind in ("STEPS", "STEP_RESULTS")]
        self._last: dict[str, StreamPosition] = {}

    def lost(self, look: Look) -> list[str]:
        """The streams that may have lost messages since the last look at which they answered, or that are missing."""
        positions = {name: StreamPosition.of(look.streams[name]) for name in self.names if name in look.streams}
        now = {name: position for name, position in positions.items() if position is not None}
        known, self._last = self._last, self._last | now
        lost = {name for name in now if name in known and has_lost_messages(known[name], now[name])}
        return sorted(lost | (set(self.names) & set(look.missing)))
