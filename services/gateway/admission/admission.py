"""Admission control: API keys, the limits of each key, the bound on requests in flight.

A key's limits count the requests at all gateways (`key_use.py`); the bound counts those of this gateway.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request as HttpRequest
from msgspec.structs import replace

from services.gateway.admission.key_use import KeyUse
from services.gateway.cell_context import CellContext
from services.gateway.errors import ApiError
from services.gateway.inflight import BATCH_OWNER, Confirm, InFlightRequest
from shared.api_keys import ANONYMOUS, ApiKey
from shared.messages.requests import Request

if TYPE_CHECKING:
    from services.gateway.admission.api_keys import ApiKeyCache

RETRY_AFTER_S = 1.0  # wait suggested to a client that exceeds a limit on requests in flight


@dataclass(slots=True)
class AdmissionController:
    """Without `api_keys` every client is admitted. The limits apply to the requests of all cells together."""

    _api_keys: "ApiKeyCache | None"
    _cells: Sequence[CellContext]
    _max_active: int
    _anonymous: ApiKey = ANONYMOUS
    key_use: KeyUse = field(init=False)

    def __post_init__(self) -> None:
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
        request = replace(request, may_refuse=cell.sheds)
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
