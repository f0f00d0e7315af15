"""Who may come in, and how many: API keys, each key's limits, and the bound on all requests under way.

Limits are counted by each gateway for itself.
"""

import asyncio
import time
from typing import TYPE_CHECKING

from fastapi import Request as HttpRequest

from services.gateway.admission.rate_limits import RateLimits
from services.gateway.admission.slo_admission import SloAdmission
from services.gateway.api.errors import ApiError
from services.gateway.inflight import BATCHES, InFlightRequests
from shared.api_keys import ANONYMOUS, ApiKey
from shared.messages.requests import Request

if TYPE_CHECKING:
    from services.gateway.admission.api_keys import ApiKeyCache

SOON_S = 1.0  # when room is likely again


class AdmissionController:
    """Without `keys`, anyone may come in."""

    def __init__(
        self, keys: "ApiKeyCache | None", calls: InFlightRequests, max_active: int, forecast: SloAdmission | None
    ) -> None:
        """With `forecast`, what could not meet its SLO is refused."""
        self._keys = keys
        self._calls = calls
        self._max_active = max_active
        self._rates = RateLimits()
        self._forecast = forecast

    async def identify(self, http: HttpRequest) -> None:
        """For routes that need a key; `key_of` gives it. Raises: ApiError 401."""
        authorization = http.headers.get("authorization", "")
        http.state.key = ANONYMOUS if self._keys is None else await self._keys.identify(authorization)

    def count(self, key: ApiKey) -> None:
        """Before the body is read. Raises: ApiError 429 if the key has had its requests of this minute."""
        if key.requests_per_minute is None:
            return
        wait_s = self._rates.take(key.key_id, key.requests_per_minute, asyncio.get_running_loop().time())
        if wait_s:
            raise _too_many(f"this key may send {key.requests_per_minute} requests a minute", wait_s)

    def permit(self, key: ApiKey, request: Request) -> None:
        """Raises: ApiError 403 if this key may never send `request`."""
        if request.priority > key.max_priority:
            message = f"priority is {request.priority}; this key's requests may have at most {key.max_priority}"
            raise ApiError(403, message, param="priority", code="priority_too_high")

    def admit(self, key: ApiKey, request: Request) -> None:
        """To be followed by Calls.open without a wait between, which counts it. Raises: ApiError 429 if `request` may
        not be sent now."""
        if key.concurrency is not None and self._calls.active_of(key.key_id) >= key.concurrency:
            raise _too_many(f"this key may have {key.concurrency} requests under way", SOON_S)
        if self._calls.active - self._calls.active_of(BATCHES) >= self._max_active:
            message = f"{self._max_active} requests are under way, as many as this gateway holds"
            raise ApiError(429, message, code="queue_full", retry_after_s=SOON_S)
        if self._forecast is not None:
            late_s = self._forecast.admit(request, time.time())
            if late_s > 0:
                message = (
                    f"slo_ms: even at the lowest threshold the request would be {late_s:.1f} s late under this load"
                )
                raise ApiError(429, message, param="slo_ms", code="slo_unattainable", retry_after_s=late_s)


def key_of(http: HttpRequest) -> ApiKey:
    """The key that `AdmissionController.identify` has found."""
    key: ApiKey = http.state.key
    return key


def _too_many(message: str, retry_after_s: float) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", retry_after_s=retry_after_s)
