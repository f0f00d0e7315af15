"""The order of waiting requests, under any sequence of additions and removals."""

from unittest.mock import sentinel

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.io.delivery import Delivery
from services.scheduler.io.waiting_requests import WaitingRequest, WaitingRequests
from shared.messages.requests import Arrival


def waiting(sequence: int, *, priority: int = 0, arrival_s: float = 0.0, name: str = "") -> WaitingRequest:
    delivery = Delivery(sequence, json=False, _reply="", _client=sentinel.client)
    arrival = Arrival(
        request_id=name or f"r{sequence}", arrival_s=arrival_s, prompt_tokens=1, output_tokens=32, slo_s=1.0
    )
    return WaitingRequest(delivery, arrival, priority)


def names(queue: WaitingRequests) -> list[str]:
    return [queue.pop().request_id for _ in range(len(queue))]


@given(
    places=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), max_size=30), removed=st.sets(st.integers(0, 29))
)
def test_the_highest_priority_is_first_then_the_earliest_arrival(
    places: list[tuple[int, int]], removed: set[int]
) -> None:
    queue, left = WaitingRequests(), []
    for sequence, (priority, arrival_s) in enumerate(places):
        queue.add(waiting(sequence, priority=priority, arrival_s=arrival_s))
    for sequence, (priority, arrival_s) in enumerate(places):
        if sequence in removed:
            assert queue.remove(f"r{sequence}") is not None
        else:
            left.append((-priority, arrival_s, sequence))
    assert names(queue) == [f"r{sequence}" for *_, sequence in sorted(left)]
    with pytest.raises(IndexError):
        queue.pop()


def test_a_request_that_returns_after_its_removal_has_its_new_place() -> None:
    queue = WaitingRequests()
    queue.add(waiting(1, priority=5, name="r"))
    queue.add(waiting(2))
    assert queue.remove("r") is not None
    assert queue.remove("r") is None
    queue.add(waiting(3, name="r"))
    assert names(queue) == ["r2", "r"]


def test_removed_requests_leave_no_memory_behind() -> None:
    queue = WaitingRequests()
    for sequence in range(10_000):
        queue.add(waiting(sequence))
        queue.remove(f"r{sequence}")
    assert len(queue._heap) < 2_000


def test_the_first_is_the_one_that_pop_removes() -> None:
    queue = WaitingRequests()
    assert queue.first() is None
    for number, priority in ((1, 0), (2, 5), (3, 5)):
        queue.add(waiting(number, priority=priority))
    queue.remove("r2")
    while (first := queue.first()) is not None:
        assert queue.pop() is first
    assert len(queue) == 0
