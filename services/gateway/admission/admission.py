"""Admission control: API keys, the limits of each key, the bound on requests in flight.

A key's limits count the requests at all gateways, which share their use of keys; the bound counts those of this
gateway.
"""

import asyncio
import math
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fastapi import Request as HttpRequest
from msgspec.structs import replace
from nats.aio.msg import Msg

from services.gateway.cell_context import CellContext
from services.gateway.errors import ApiError
from services.gateway.inflight import BATCH_OWNER, Confirm, InFlightRequest
from shared.api_keys import ANONYMOUS, ApiKey
from shared.bus.client import Bus, try_decode
from shared.bus.clock import BusClock
from shared.messages.gateway import GatewayUse, KeyRate
from shared.messages.requests import Request
from shared.tasks import pause

if TYPE_CHECKING:
    from services.gateway.admission.api_keys import ApiKeyCache


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

    def count(self, key_id: str, per_minute: int, requests: int, now_s: float, due_s: float = -math.inf) -> None:
        """Count requests that another gateway has allowed, by which all that it has counted are due at `due_s`."""
        own_s = max(now_s, self._due_s.get((key_id, per_minute), -math.inf)) + requests * 60 / per_minute
        self._due_s[key_id, per_minute] = max(own_s, due_s)

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
            self._rates.count(rate.key, rate.per_minute, rate.allowed, now_s, rate.due_s + to_loop_s)
        self._elsewhere = {name: of for name, of in self._elsewhere.items() if of[0] >= now_s - SILENCE_S}
        self._elsewhere[use.gateway] = now_s, use.in_flight


def _now_s() -> float:
    return asyncio.get_running_loop().time()


RETRY_AFTER_S = 1.0  # wait suggested to a client that exceeds a limit on requests in flight


class AdmissionController:
    """The limits apply to the requests of all cells together."""

    def __init__(
        self, api_keys: "ApiKeyCache | None", cells: Sequence[CellContext], max_active: int, anonymous: ApiKey
    ) -> None:
        """`anonymous`: the key of every client without `api_keys`."""
        self._api_keys, self._cells, self._max_active, self._anonymous = api_keys, cells, max_active, anonymous
        self.key_use = KeyUse(self._in_flight)

    async def identify(self, http: HttpRequest) -> None:
        """Dependency of routes that need a key; `key_of` returns it. Raises: ApiError 401."""
        http.state.key = self._anonymous if self._api_keys is None else await self._api_keys.identify(http.headers)

    def keys(self, viewer: ApiKey) -> list[tuple[ApiKey, int]]:
        """The keys that `viewer` may see, each with its requests in flight at all gateways; none without `auth`."""
        valid = self._api_keys.valid if self._api_keys else ()
        return [(key, self._total_of(key.key_id)) for key in valid if viewer.may_see(key.key_id)]

    def check_rate(self, key: ApiKey) -> None:
        """Count a request before its body is read. Raises: ApiError 429 above the key's requests per minute."""
        if key.requests_per_minute is None:
            return
        if wait_s := self.key_use.acquire(key.key_id, key.requests_per_minute):
            raise _limit_exceeded(_rate_limit(key.requests_per_minute), wait_s)

    def check_plan(self, key: ApiKey, requests: Sequence[Request], field: str, *, are_run: bool) -> None:
        """Check the requests of one body, and count all of them or none; `check_rate` has counted the first one.
        `field`: asks for several.

        Raises: ApiError 403 if their priority is above the key's maximum; 400 naming `field` if the key or this gateway
        never allows them together; 429 if the key's rate does not allow them now.
        """
        choices, per_minute = len(requests), key.requests_per_minute
        if are_run and requests[0].priority > key.max_priority:
            message = f"priority is {requests[0].priority}; the maximum of this key is {key.max_priority}"
            raise ApiError(403, message, param="priority", code="priority_too_high")
        if are_run and key.concurrency is not None and choices > key.concurrency:
            raise _too_many(choices, field, _concurrency_limit(key.concurrency))
        if are_run and choices > self._max_active:
            raise _too_many(choices, field, f"the limit of this gateway is {self._max_active} requests in flight")
        if per_minute is None or choices == 1:
            return
        if choices > per_minute:
            raise _too_many(choices, field, _rate_limit(per_minute))
        wait_s = self.key_use.acquire(key.key_id, per_minute, choices - 1)
        if wait_s:  # a repetition counts its first choice again
            raise _limit_exceeded(f"{_rate_limit(per_minute)}; {field} asks for {choices}", wait_s + 60 / per_minute)

    async def open(
        self, key: ApiKey, request: Request, arrived_s: float, cell: CellContext, *, confirm: Confirm | None = None
    ) -> InFlightRequest:
        """Publish the request in the cell. No await is between the checks and InFlightRequests.open, which counts it.

        Raises: ApiError 429 if a limit is reached; errors of InFlightRequests.open.
        """
        if key.concurrency is not None and self._total_of(key.key_id) >= key.concurrency:
            raise _limit_exceeded(_concurrency_limit(key.concurrency), RETRY_AFTER_S)
        if sum(each.inflight.count for each in self._cells) - self._count_of(BATCH_OWNER) >= self._max_active:
            message = f"this gateway has {self._max_active} requests in flight, its limit"
            raise ApiError(429, message, code="queue_full", retry_after_s=RETRY_AFTER_S)
        stats = cell.readiness.stats
        request = replace(request, may_refuse=stats is not None and stats.shed)
        return await cell.inflight.open(request, key.key_id, arrived_s, confirm=confirm)

    def _total_of(self, key_id: str) -> int:
        """The key's requests in flight at all gateways."""
        return self._count_of(key_id) + self.key_use.in_flight_elsewhere(key_id)

    def _in_flight(self) -> dict[str, int]:
        """The requests in flight of each key at this gateway."""
        counts = sum((cell.inflight.counts for cell in self._cells), Counter[str]())  # without counts of 0
        return {key_id: count for key_id, count in counts.items() if key_id not in (BATCH_OWNER, ANONYMOUS.key_id)}

    def _count_of(self, owner: str) -> int:
        return sum(cell.inflight.counts[owner] for cell in self._cells)


def key_of(http: HttpRequest) -> ApiKey:
    """The key that `AdmissionController.identify` found."""
    key: ApiKey = http.state.key
    return key


def _limit_exceeded(message: str, retry_after_s: float) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", retry_after_s=retry_after_s)


def _too_many(choices: int, field: str, limit: str) -> ApiError:
    return ApiError(400, f"{field} asks for {choices} requests; {limit}", param=field, code="invalid_value")


def _rate_limit(per_minute: int) -> str:
    return f"the limit of this key is {per_minute} requests per minute"


def _concurrency_limit(concurrency: int) -> str:
    return f"the limit of this key is {concurrency} requests in flight"
