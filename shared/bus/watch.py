"""Reads the state of a cell's streams at one interval, and hands it to everything that follows the state.

A stream that cannot be read is left out: the server is unavailable, or the stream has no leader or is not set up yet.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.bus.codec import decode
from shared.bus.errors import BUS_ERRORS
from shared.errors import BadInput
from shared.tasks import pause

ANSWER_S = 0.5  # time limit of the answer about one stream


class StreamContent(msgspec.Struct, frozen=True):
    last_seq: int
    messages: int = 0
    bytes: int = 0


class StreamLimits(msgspec.Struct, frozen=True):
    """At most 0: no such limit."""

    max_msgs: int = 0
    max_bytes: int = 0


class StreamCluster(msgspec.Struct, frozen=True):
    leader: str | None = None  # None: the cluster has not chosen it yet


class StreamState(msgspec.Struct, frozen=True):
    """The part of a stream's description that is read."""

    state: StreamContent
    created: datetime | None = None
    ts: datetime | None = None  # time of the answer by the bus's clock; None: NATS before 2.10
    config: StreamLimits = StreamLimits()
    cluster: StreamCluster | None = None  # None: there is no cluster


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look."""

    streams: Mapping[str, StreamState] = field(default_factory=dict)  # by name; without those that did not answer
    missing: Collection[str] = ()  # expected streams that the bus does not have; empty if it did not answer


Follower = Callable[[Look], Awaitable[None]]


class BusWatch:
    """Looks at some streams of a cell. The time stamps of the answers set `clock`."""

    def __init__(
        self, bus: Bus, streams: Collection[str], interval_s: float, *, expected: Collection[str] = ()
    ) -> None:
        """`streams`: names of those to describe; `expected`: names of those that must exist."""
        self.clock = BusClock()
        self._bus = bus
        self._streams = tuple(streams)
        self._interval_s = interval_s
        self._expected = frozenset(expected)
        self._followers: list[Follower] = []

    def follow(self, follower: Follower) -> None:
        """Call it after each look, one follower after another."""
        self._followers.append(follower)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await pause(self._interval_s)

    async def look(self) -> None:
        """Look once."""
        answers, missing = await asyncio.gather(
            asyncio.gather(*map(self._describe, self._streams)), self._find_missing()
        )
        found = {name: state for name, state in zip(self._streams, answers, strict=True) if state is not None}
        for follower in self._followers:
            await follower(Look(found, missing))

    async def _describe(self, stream: str) -> StreamState | None:
        sent_s = time.monotonic()
        try:
            reply = await self._bus.nc.request(f"$JS.API.STREAM.INFO.{stream}", timeout=ANSWER_S)
            state = decode(reply.data, StreamState)
        except (*BUS_ERRORS, BadInput):
            return None
        if state.ts is not None:
            self.clock.set(state.ts, sent_s, time.monotonic())
        return state

    async def _find_missing(self) -> frozenset[str]:
        if not self._expected:
            return frozenset()
        try:
            return self._expected - await self._bus.stream_names()
        except BUS_ERRORS:
            return frozenset()
