"""Why requests cannot be served, from the state of the cell."""

from typing import Any

import pytest
from msgspec.structs import replace

from services.gateway.ready_reasons import CellState, Storage, reasons
from shared.bus.watch import StreamContent, StreamLimits, StreamState
from shared.messages.stats import InstanceLoad
from tests.builders import scheduler_stats

GIB = 2**30


def stream(messages: int, size: int, **limits: int) -> StreamState:
    return StreamState(StreamContent(messages, messages, size), config=StreamLimits(**limits))


FULL = stream(10, 9 * GIB, max_bytes=10 * GIB)
HALF = stream(89, 5 * GIB, max_msgs=100, max_bytes=10 * GIB)


def serving(**changes: Any) -> CellState:
    """A cell that serves, but for `changes`."""
    state: dict[str, Any] = {"stats": scheduler_stats(), "ready_instances": 1, "leaders": 1}
    return CellState(**state | {"max_queue_s": 300.0} | changes)


def texts(state: CellState) -> list[str]:
    return [reason.text for reason in reasons(state)]


def instance(step_latency_s: float) -> InstanceLoad:
    [load] = scheduler_stats().instances
    return replace(load, step_latency_s=step_latency_s)


def test_a_cell_that_serves_has_no_reason() -> None:
    assert texts(serving()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"draining": True}, "the gateway is shutting down"),
        ({"connected": False}, "the bus is not connected"),
        ({"storage": Storage()}, "the bus stores no message: it has not been checked yet"),
        ({"storage": Storage(problem=None, free_bytes=100 << 20)}, "the disk of the bus has 100.0 MiB left"),
        (
            {"storage": Storage(problem=None, streams={"OUTCOMES": FULL})},
            "the bus stores 9.0 GiB of outcomes, of at most 10.0 GiB",
        ),
        (
            {"storage": Storage(problem=None, streams={"REQUESTS": stream(900, 0, max_msgs=1000)})},
            "the bus stores 900 unfinished requests, of at most 1,000",
        ),
        ({"stats": None}, "no scheduler leads"),
        ({"leaders": 4}, "the scheduler has started 4 times in the last 60 s"),
        ({"ready_instances": 0}, "no instance is ready"),
        (
            {"stats": scheduler_stats(instances=[])},
            "the scheduler has refused every ready instance; its log has the reasons",
        ),
        ({"stats": scheduler_stats(stalled_s=6.0)}, "no step has ended for 6 s, with 4 requests active"),
        ({"stats": scheduler_stats(oldest_queued_s=301.0)}, "a request has waited 301 s for an instance"),
        ({"unreceived_s": 11.0}, "the bus has had requests for 11 s that the scheduler does not have"),
    ],
)
def test_each_condition_gives_one_line(changes: dict[str, Any], expected: str) -> None:
    assert texts(serving(**changes)) == [expected]


def test_full_files_and_values_within_their_limits_are_no_reason() -> None:
    unlimited = stream(10, 9 * GIB, max_msgs=-1, max_bytes=-1)
    streams = {"files": FULL, "claims": FULL, "REQUESTS": HALF, "OUTCOMES": unlimited}
    storage = Storage(problem=None, streams=streams, free_bytes=GIB)
    stats = scheduler_stats(stalled_s=4.9, oldest_queued_s=299.0)
    assert texts(serving(storage=storage, stats=stats, unreceived_s=9.0, leaders=3)) == []


def test_the_time_without_a_step_is_measured_by_the_slowest_instance() -> None:
    loads = [instance(0.01), instance(1.0)]
    assert texts(serving(stats=scheduler_stats(stalled_s=19.0, instances=loads))) == []
    assert texts(serving(stats=scheduler_stats(stalled_s=21.0, instances=loads))) != []


def test_without_an_instance_the_numbers_of_the_scheduler_do_not_count() -> None:
    stalled = scheduler_stats(stalled_s=100.0, oldest_queued_s=1000.0)
    assert texts(serving(stats=stalled, ready_instances=0)) == ["no instance is ready"]
