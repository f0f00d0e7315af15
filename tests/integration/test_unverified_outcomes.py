"""Outcomes of an instance that computes wrong are marked whatever their age, and whichever scheduler stored them."""

from typing import Any

import pytest

from services.scheduler.io import outcome_store
from services.scheduler.io.outcome_store import OutcomeStore
from shared.bus import direct_reads
from shared.bus.client import HEADER_BYTES, Bus
from shared.bus.clock import BusClock
from shared.bus.codec import is_json
from shared.messages.requests import Outcome, OutcomeStatus
from shared.text import TextModel
from tests.builders import serving_stats

DAY_S = 24 * 3600.0


@pytest.fixture
async def outcomes(bus: Bus, text: TextModel) -> OutcomeStore:
    """Of a scheduler that has just started."""
    return OutcomeStore(bus, BusClock(), text)


async def store(bus: Bus, request_id: str, *instances: str, json: bool = False, **fields: Any) -> None:
    stats = serving_stats(instances=list(instances)) if instances else None
    outcome = Outcome(request_id=request_id, status=OutcomeStatus.COMPLETED, stats=stats, **fields)
    await bus.store(bus.subjects.outcomes(request_id), outcome, json=json)


async def marked(bus: Bus, *request_ids: str) -> list[bool]:
    found = [await bus.outcome(each) for each in request_ids]
    return [each is not None and each.unverified for each in found]


async def messages(bus: Bus) -> int:
    return (await bus.js.stream_info(bus.subjects.stream("OUTCOMES"))).state.last_seq


async def test_outcomes_of_earlier_schedulers_are_marked(
    bus: Bus, outcomes: OutcomeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_reads, "PAGE_MESSAGES", 3)
    outcomes.distrust("bad", -1.0)
    await outcomes.drain()
    assert await messages(bus) == 0  # there is none to mark
    names = [f"r-{i}" for i in range(10)]
    for name in names:
        await store(bus, name, "good", "bad")
    await store(bus, "good", "good", text="not bad")
    await store(bus, "unserved", text="bad")
    await bus.js.publish(bus.subjects.outcomes("damaged"), b"bad")
    await store(bus, "alice.r", "bad")
    outcomes.distrust("bad", DAY_S)
    await outcomes.drain()
    assert await marked(bus, *names, "alice.r") == [True] * 11
    assert await marked(bus, "good", "unserved") == [False, False]
    stored = await messages(bus)
    outcomes.distrust("bad", DAY_S)
    await outcomes.drain()
    assert await messages(bus) == stored  # no outcome is stored a third time


async def test_a_page_has_few_bytes(bus: Bus, outcomes: OutcomeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_reads, "PAGE_BYTES", 1000)
    for i in range(5):
        await store(bus, f"r-{i}", "bad", text="x" * 700)
    outcomes.distrust("bad", DAY_S)
    await outcomes.drain()
    assert await marked(bus, *(f"r-{i}" for i in range(5))) == [True] * 5


async def test_outcomes_before_the_last_good_canary_stay_as_they_are(
    bus: Bus, outcomes: OutcomeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_store, "UNVERIFIED_MARGIN_S", 0.0)
    clock = BusClock()
    await store(bus, "before", "bad")
    verified_s = clock.now_s()
    await store(bus, "after", "bad")
    outcomes.distrust("bad", clock.now_s() - verified_s)
    await outcomes.drain()
    assert await marked(bus, "before", "after") == [False, True]


async def test_a_marked_outcome_keeps_its_encoding(bus: Bus, outcomes: OutcomeStore) -> None:
    await store(bus, "json", "bad", json=True)
    await store(bus, "msgpack", "bad")
    outcomes.distrust("bad", 1e300)
    await outcomes.drain()
    assert await marked(bus, "json", "msgpack") == [True, True]
    stream = bus.subjects.stream("OUTCOMES")
    found = [await bus.js.get_last_msg(stream, bus.subjects.outcomes(name)) for name in ("json", "msgpack")]
    assert [is_json(each.data or b"") for each in found] == [True, False]


async def test_an_outcome_that_is_too_large_with_its_mark_does_not_stop_the_others(
    bus: Bus, outcomes: OutcomeStore
) -> None:
    await store(bus, "some", "bad", text="x" * 70_000)
    stored = await bus.js.get_last_msg(bus.subjects.stream("OUTCOMES"), bus.subjects.outcomes("some"))
    room = bus.nc.max_payload - HEADER_BYTES - len(stored.data or b"")
    await store(bus, "full", "bad", text="x" * (70_000 + room))
    await store(bus, "last", "bad")
    outcomes.distrust("bad", 1e300)
    await outcomes.drain()
    assert await marked(bus, "some", "full", "last") == [True, False, True]
