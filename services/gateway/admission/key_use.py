"""The use of API keys at all gateways of a cell, which hold the keys' limits together.

Each gateway publishes the requests that it has allowed and those in flight, at most PUBLISH_S late. Within that time
each gateway may allow as many as one gateway would; the rate limit then counts them all. A gateway that has just
started learns the rates from the others within REPEAT_S.
"""

import asyncio
import math
import uuid
from collections import Counter
from collections.abc import Callable, Mapping

from nats.aio.msg import Msg

from shared.bus.client import Bus, try_decode
from shared.bus.clock import BusClock
from shared.messages.gateway import GatewayUse, KeyRate
from shared.tasks import pause


class RateLimits:
    """Allows a key a burst of one minute's requests, then one per interval (the generic cell rate algorithm)."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[str, int], float] = {}  # by key and limit: the time at which all its requests are due

    def acquire(self, key_id: str, per_minute: int, now_s: float, requests: int = 1) -> float:
        """Count the requests if all are allowed. Returns: 0.0, or the seconds until they are allowed."""
        due_s = max(now_s, self._due_s.get((key_id, per_minute), -math.inf)) + requests * 60 / per_minute
        if due_s > now_s + 60:
            return due_s - now_s - 60
        self._due_s[key_id, per_minute] = due_s
        return 0.0

    def count(self, key_id: str, per_minute: int, requests: int, now_s: float) -> None:
        """Count requests that another gateway has allowed."""
        due_s = self._due_s.get((key_id, per_minute), -math.inf)
        self._due_s[key_id, per_minute] = max(now_s, due_s) + requests * 60 / per_minute

    def count_until(self, key_id: str, per_minute: int, due_s: float) -> None:
        """Count requests until all are due at this time, as another gateway has counted them."""
        self._due_s[key_id, per_minute] = max(due_s, self._due_s.get((key_id, per_minute), -math.inf))

    def due(self, now_s: float) -> Mapping[tuple[str, int], float]:
        """By key and limit, the time at which all its requests are due, if that is yet to come. Forgets the others."""
        self._due_s = {name: due_s for name, due_s in self._due_s.items() if due_s > now_s}
        return self._due_s


PUBLISH_S = 0.05  # interval of messages while something changes
REPEAT_S = 1.0  # interval of messages otherwise
SILENCE_S = 3.0  # after which the requests in flight of a gateway no longer count


class KeyUse:
    """Counts the requests of each key: allowed per minute here and elsewhere, in flight elsewhere."""

    def __init__(self, in_flight_here: Callable[[], dict[str, int]]) -> None:
        """`in_flight_here()`: the requests in flight of each key that has some."""
        self._in_flight_here = in_flight_here
        self._gateway = uuid.uuid4().hex
        self._rates = RateLimits()
        self._allowed: Counter[tuple[str, int]] = Counter()  # by key and limit: not published yet
        self._elsewhere: dict[str, tuple[float, dict[str, int]]] = {}  # by gateway: loop time of the message, in flight

    def acquire(self, key_id: str, per_minute: int, requests: int = 1) -> float:
        """As RateLimits.acquire."""
        wait_s = self._rates.acquire(key_id, per_minute, _now_s(), requests)
        if not wait_s:
            self._allowed[key_id, per_minute] += requests
        return wait_s

    def in_flight_elsewhere(self, key_id: str) -> int:
        oldest_s = _now_s() - SILENCE_S
        return sum(counts.get(key_id, 0) for at_s, counts in self._elsewhere.values() if at_s >= oldest_s)

    async def run(self, bus: Bus, clock: BusClock) -> None:
        """Share the use with the other gateways, until cancelled."""

        async def receive(msg: Msg) -> None:
            use = try_decode(msg, GatewayUse)
            if use is not None and use.gateway != self._gateway:
                self.receive(use, _now_s() - clock.now_s())

        await bus.nc.subscribe(bus.subjects.key_use, cb=receive)
        published, published_s = dict[str, int](), 0.0
        while True:
            in_flight = self._in_flight_here()
            is_changed = bool(self._allowed) or in_flight != published
            if bus.nc.is_connected and (is_changed or _now_s() >= published_s + REPEAT_S):
                await bus.publish(bus.subjects.key_use, self._message(in_flight, clock.now_s() - _now_s()))
                published, published_s = in_flight, _now_s()
            await pause(PUBLISH_S)

    def _message(self, in_flight: dict[str, int], to_bus_s: float) -> GatewayUse:
        """`to_bus_s`: the bus's clock less the loop's."""
        due_s, allowed = self._rates.due(_now_s()), self._allowed
        rates = [
            KeyRate(
                key=key, per_minute=limit, allowed=allowed[key, limit], due_s=due_s.get((key, limit), 0.0) + to_bus_s
            )
            for key, limit in due_s.keys() | allowed.keys()
        ]
        self._allowed = Counter()
        return GatewayUse(gateway=self._gateway, rates=rates, in_flight=in_flight)

    def receive(self, use: GatewayUse, to_loop_s: float) -> None:
        """Count the use of another gateway. `to_loop_s`: the loop's clock less the bus's."""
        now_s = _now_s()
        for rate in use.rates:
            self._rates.count(rate.key, rate.per_minute, rate.allowed, now_s)
            self._rates.count_until(rate.key, rate.per_minute, rate.due_s + to_loop_s)
        self._elsewhere = {name: of for name, of in self._elsewhere.items() if of[0] >= now_s - SILENCE_S}
        self._elsewhere[use.gateway] = now_s, use.in_flight


def _now_s() -> float:
    return asyncio.get_running_loop().time()
