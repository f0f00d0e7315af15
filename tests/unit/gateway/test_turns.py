"""Owners have a resource in turn."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.api.turns import Turns


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
