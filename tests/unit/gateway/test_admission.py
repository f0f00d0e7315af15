"""Limits on a key's requests per minute, and owners that have a resource in turn."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission.admission import RateLimits
from services.gateway.api.turns import Turns


def test_a_burst_of_one_minutes_requests_passes_then_one_per_interval() -> None:
    rates = RateLimits()
    assert [rates.acquire("a", 6, 100.0) for _ in range(6)] == [0.0] * 6
    assert rates.acquire("a", 6, 100.0) == 10.0
    assert rates.acquire("a", 6, 104.0) == 6.0
    assert rates.acquire("a", 6, 110.0) == 0.0


def test_requests_together_are_all_counted_or_none() -> None:
    rates = RateLimits()
    assert rates.acquire("a", 6, 100.0, 4) == 0.0
    assert rates.acquire("a", 6, 100.0, 3) == 10.0
    assert rates.acquire("a", 6, 100.0, 2) == 0.0
    assert rates.acquire("a", 6, 100.0, 1) == 10.0


def test_each_key_and_limit_is_counted_separately() -> None:
    rates = RateLimits()
    assert rates.acquire("a", 1, 0.0) == 0.0
    assert rates.acquire("a", 1, 0.0) > 0
    assert rates.acquire("b", 1, 0.0) == 0.0
    assert rates.acquire("a", 2, 0.0) == 0.0


@given(per_minute=st.integers(1, 600), waits_s=st.lists(st.floats(0, 30), max_size=200))
def test_requests_never_exceed_one_burst_plus_the_rate(per_minute: int, waits_s: list[float]) -> None:
    rates, now_s, allowed = RateLimits(), 50.0, 0
    for wait_s in waits_s:
        now_s += wait_s
        allowed += rates.acquire("a", per_minute, now_s) == 0.0
    assert allowed <= per_minute + (now_s - 50.0) * per_minute / 60 + 1e-6


def exchange(gateways: list[RateLimits], allowed: list[int], per_minute: int, now_s: float) -> None:
    """Each gateway counts what the others have allowed since the last exchange."""
    for here, rates in enumerate(gateways):
        others = sum(count for there, count in enumerate(allowed) if there != here)
        rates.count("a", per_minute, others, now_s)


@given(
    per_minute=st.integers(1, 6000),
    number=st.integers(2, 4),
    asked=st.lists(st.integers(0, 20), min_size=20, max_size=100),
)
def test_gateways_exceed_a_shared_limit_by_one_interval_at_most(per_minute: int, number: int, asked: list[int]) -> None:
    """They exchange their counts every 50 ms; in each interval all of them are asked for as many requests."""
    gateways, now_s, total = [RateLimits() for _ in range(number)], 50.0, 0
    for requests in asked:
        allowed = [sum(rates.acquire("a", per_minute, now_s) == 0.0 for _ in range(requests)) for rates in gateways]
        exchange(gateways, allowed, per_minute, now_s)
        total += sum(allowed)
        now_s += 0.05
    in_time = per_minute + (now_s - 50.0) * per_minute / 60
    assert total <= in_time + (number - 1) * max(asked) + 1e-6


def test_a_gateway_that_starts_takes_over_the_count_of_another_once() -> None:
    old, new = RateLimits(), RateLimits()
    assert [old.acquire("a", 6, 100.0) for _ in range(6)] == [0.0] * 6
    for _ in range(3):
        for (key, per_minute), due_s in old.due(100.0).items():
            new.count(key, per_minute, 0, 100.0, due_s)
    assert new.acquire("a", 6, 100.0) == 10.0
    assert new.due(160.1) == {}


async def order_of(owners: Sequence[str], leaving: frozenset[int] = frozenset(), long: str = "") -> list[str]:
    """The order in which tasks of these owners have the resource, all of which wait at once, but for those that leave
    before their turn. A task takes a second, or ten if its owner is in `long`."""
    now_s, order = 0.0, list[str]()
    turns, is_free = Turns(1, lambda: now_s), asyncio.Event()

    async def first() -> None:
        async with turns.turn("first"):
            await is_free.wait()

    async def task(owner: str) -> None:
        nonlocal now_s
        async with turns.turn(owner):
            order.append(owner)
            now_s += 10 if owner in long else 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first())
        waiting = [tasks.create_task(task(owner)) for owner in owners]
        await asyncio.sleep(0)
        for at in leaving:
            waiting[at].cancel()
        is_free.set()
    return order


def test_an_owner_with_many_tasks_delays_another_by_one() -> None:
    assert asyncio.run(order_of("aaaabbc")) == list("abcabaa")


def test_an_owner_with_long_tasks_has_fewer_turns() -> None:
    assert asyncio.run(order_of("aaa" + 25 * "b", long="a")) == list("a" + 10 * "b" + "a" + 10 * "b" + "a" + 5 * "b")


def test_tasks_that_left_cost_their_owner_no_turn() -> None:
    assert asyncio.run(order_of("aaabbb", frozenset({0, 1}))) == list("abbb")


@given(st.lists(st.sampled_from("abc"), max_size=12), st.frozensets(st.integers(0, 11)))
def test_each_task_that_stays_has_its_turn(owners: list[str], leaving: frozenset[int]) -> None:
    leaving = frozenset(at for at in leaving if at < len(owners))
    order = asyncio.run(order_of(owners, leaving))
    assert sorted(order) == sorted(owner for at, owner in enumerate(owners) if at not in leaving)


async def test_a_turn_that_is_granted_to_a_task_that_leaves_goes_to_the_next() -> None:
    turns = Turns(1)
    async with turns.turn("a"):
        leaves = asyncio.create_task(turns.turn("b").__aenter__())
        stays = asyncio.create_task(turns.turn("c").__aenter__())
        await asyncio.sleep(0)
    leaves.cancel()  # in the same step as the grant
    with pytest.raises(asyncio.CancelledError):
        await leaves
    async with asyncio.timeout(5):
        await stays


async def test_another_owner_has_the_second_slot_at_once_and_the_same_owner_waits() -> None:
    turns, order = Turns(2), list[str]()

    async def task(owner: str) -> None:
        async with turns.turn(owner):
            order.append(owner)

    async with asyncio.TaskGroup() as tasks:
        async with turns.turn("a"):
            waits = tasks.create_task(task("a"))
            await task("b")
            await task("b")
            assert not waits.done()
        await waits
    assert order == ["b", "b", "a"]
