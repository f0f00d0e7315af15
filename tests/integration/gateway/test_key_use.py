"""The use of API keys that gateways share over the bus."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from services.gateway.admission.admission import SILENCE_S, KeyUse
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.messages.gateway import GatewayUse
from shared.tasks import during
from tests.support.waiting import reached

MINUTE_S = 60.0


@contextlib.asynccontextmanager
async def sharing(bus: Bus, in_flight: dict[str, int]) -> AsyncIterator[KeyUse]:
    """One gateway's part; `in_flight` may change."""
    use, clock = KeyUse(lambda: dict(in_flight)), BusClock()
    async with during(use.run(bus, clock)):
        yield use


async def until_counted(use: KeyUse, key_id: str) -> None:
    """Wait until this gateway counts a request at another one, at a limit of one per minute. It may allow one itself
    before it knows; then its own wait is one minute longer."""
    own = 0

    def is_counted() -> bool:
        nonlocal own
        wait_s = use.acquire(key_id, 1)
        own += not wait_s
        return wait_s > own * MINUTE_S

    await reached(is_counted)


async def test_gateways_count_the_requests_in_flight_at_the_others(bus: Bus) -> None:
    here, there = {"k": 2, "l": 1}, dict[str, int]()
    async with sharing(bus, here) as first, sharing(bus, there) as second:
        await reached(lambda: second.in_flight_elsewhere("k") == 2)
        assert second.in_flight_elsewhere("l") == 1
        assert first.in_flight_elsewhere("k") == 0
        del here["k"]
        await reached(lambda: second.in_flight_elsewhere("k") == 0)


async def test_gateways_count_the_requests_allowed_by_the_others(bus: Bus) -> None:
    async with sharing(bus, {}) as first, sharing(bus, {}) as second:
        assert first.acquire("k", 1) == 0.0
        await until_counted(second, "k")
        assert second.acquire("other", 1) == 0.0


async def test_requests_of_a_gateway_count_until_it_was_silent_for_three_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, use = 100.0, KeyUse(dict)
    monkeypatch.setattr("services.gateway.admission.admission._now_s", lambda: now_s)
    use.receive(GatewayUse(gateway="g1", rates=[], in_flight={"k": 2}), 0.0)
    assert use.in_flight_elsewhere("k") == 2
    now_s += SILENCE_S + 0.1
    assert use.in_flight_elsewhere("k") == 0
