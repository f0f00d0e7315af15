"""Unfinished requests: their arrival, the order of those that wait, and the state that others may look up."""

from unittest.mock import sentinel

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.events import SendJobs
from services.scheduler.io.delivery import Delivery
from services.scheduler.io.lookups import active_request, matching_requests
from services.scheduler.io.request_consumer import arrival_time
from services.scheduler.io.waiting_requests import ReceivedRequest, WaitingRequests
from shared.bus.clock import corrected
from shared.messages.requests import ActiveRequest, Arrival, Request, UnfinishedQuery
from tests.builders import ARRIVAL_S, arrival, registered, scheduler_core
from tests.support.scripted_worker import ScriptedWorker

NOW_S = 1_000_000.0
offsets = st.floats(-1e6, 1e6)


@given(age_s=st.floats(0.0, 1e5), stored_s=st.floats(0.0, 2 * NOW_S))
def test_the_time_at_the_producer_and_on_the_bus_counts_but_none_in_the_future(age_s: float, stored_s: float) -> None:
    arrival_s = arrival_time(Request(request_id="r", age_s=age_s), stored_s, NOW_S)
    assert arrival_s == pytest.approx(min(stored_s - age_s, NOW_S), abs=1e-6)


@given(known_s=st.none() | offsets, measured_s=offsets, error_s=st.floats(0.0, 1.0))
def test_the_clock_moves_only_if_a_measurement_excludes_it(
    known_s: float | None, measured_s: float, error_s: float
) -> None:
    offset_s = corrected(known_s, measured_s, error_s)
    assert abs(offset_s - measured_s) <= error_s
    assert offset_s == known_s or known_s is None or abs(known_s - measured_s) > error_s


def waiting(sequence: int = 1, *, priority: int = 3, arrival_s: float = ARRIVAL_S, name: str = "r") -> ReceivedRequest:
    delivery = Delivery(sequence, json=False, _reply="", _client=sentinel.client, _is_void=sentinel.event)
    received = Arrival(request_id=name, arrival_s=arrival_s, prompt_tokens=3, output_tokens=8, slo_s=5.0)
    return ReceivedRequest(delivery, received, priority, key="alice")


def names(queue: WaitingRequests) -> list[str]:
    """The ids in the order of removal; the first request is the next one to be removed."""
    found = []
    while (first := queue.first()) is not None:
        assert queue.pop() is first
        found.append(first.request_id)
    assert len(queue) == 0
    return found


@given(
    places=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), max_size=30), removed=st.sets(st.integers(0, 29))
)
def test_the_highest_priority_is_first_then_the_earliest_arrival(
    places: list[tuple[int, int]], removed: set[int]
) -> None:
    queue, left = WaitingRequests(), []
    for sequence, (priority, arrival_s) in enumerate(places):
        queue.add(waiting(sequence, priority=priority, arrival_s=arrival_s, name=f"r{sequence}"))
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
    queue.add(waiting(priority=5))
    queue.add(waiting(2, name="r2"))
    assert queue.remove("r") is not None
    assert queue.remove("r") is None
    queue.add(waiting(3))
    assert names(queue) == ["r2", "r"]


def test_removed_requests_leave_no_memory_behind() -> None:
    queue = WaitingRequests()
    for sequence in range(10_000):
        queue.add(waiting(sequence, name=f"r{sequence}"))
        queue.remove(f"r{sequence}")
    assert len(queue._heap) < 2_000


TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
RECEIVED = ActiveRequest(
    is_known=True, request_id="r", key="alice", arrival_s=ARRIVAL_S, slo_s=5.0, priority=3, output_tokens=8
)


def test_a_request_waits_while_the_core_does_not_have_it_or_has_no_instance() -> None:
    core = scheduler_core()
    assert active_request(waiting(), core) == RECEIVED
    core.cycle([arrival("r", output_tokens=8, block_length=4)], ARRIVAL_S)
    assert active_request(waiting(), core) == RECEIVED


def test_a_running_request_has_its_instance_and_its_steps_so_far() -> None:
    core = scheduler_core()
    [sent] = core.cycle([registered("a-1"), arrival("r", output_tokens=8, block_length=4)], ARRIVAL_S)
    assert isinstance(sent, SendJobs)
    core.cycle(ScriptedWorker().run_each(sent.jobs), ARRIVAL_S + 0.1)
    found = active_request(waiting(), core)
    assert (found.instance, found.steps, found.migrations, found.output_tokens) == ("a-1", 1, 0, 8)
    assert 0 < found.unmasked_tokens < found.output_tokens
    assert found.mean_threshold == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (UnfinishedQuery(), ["first", "second", "third", "not-in-core"]),
        (UnfinishedQuery(id_part="ir"), ["first", "third"]),
        (UnfinishedQuery(key="alice", instance="a-1"), ["first", "second"]),
        (UnfinishedQuery(instance="a-1", id_part="first"), ["first"]),
        (UnfinishedQuery(instance="a-1", key="bob"), []),
        (UnfinishedQuery(instance="no-such"), []),
    ],
)
def test_a_query_is_answered_by_key_instance_and_id(query: UnfinishedQuery, names: list[str]) -> None:
    core = scheduler_core()
    core.cycle([registered("a-1", max_batch_requests=2)], ARRIVAL_S)
    for name in ("first", "second", "third"):
        core.cycle([arrival(name)], ARRIVAL_S)
    received = [waiting(name=name) for name in ("first", "second", "third", "not-in-core")]
    assert [found.request_id for found in matching_requests(query, received, core)] == names


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [(f"00-{TRACE_ID}-b7ad6b7169203331-01", TRACE_ID), ("", ""), ("nothing", ""), ("00-short-b7-01", "")],
)
def test_the_id_of_a_trace_is_read_from_a_valid_context(traceparent: str, trace_id: str) -> None:
    arrived = arrival("r")
    arrived.trace["traceparent"] = traceparent
    assert arrived.trace_id == trace_id
