"""The state of a request that has no outcome yet."""

from unittest.mock import sentinel

import pytest

from services.scheduler.events import SendJobs
from services.scheduler.io.active_request import active_request, matching_requests
from services.scheduler.io.delivery import Delivery
from services.scheduler.io.waiting_requests import WaitingRequest
from shared.messages.requests import ActiveRequest, Arrival, UnfinishedQuery
from tests.builders import ARRIVAL_S, arrival, registered, scheduler_core
from tests.support.scripted_worker import ScriptedWorker

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
RECEIVED = ActiveRequest(
    is_known=True, request_id="r", key="alice", arrival_s=ARRIVAL_S, slo_s=5.0, priority=3, output_tokens=8
)


def waiting(name: str = "r") -> WaitingRequest:
    delivery = Delivery(1, json=False, _reply="", _client=sentinel.client)
    received = Arrival(request_id=name, arrival_s=ARRIVAL_S, prompt_tokens=3, output_tokens=8, slo_s=5.0)
    return WaitingRequest(delivery, received, priority=3, key="alice")


def test_a_request_that_the_core_does_not_have_waits() -> None:
    assert active_request(waiting(), scheduler_core()) == RECEIVED


def test_a_request_without_an_instance_waits() -> None:
    core = scheduler_core()
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
    received = [waiting(name) for name in ("first", "second", "third", "not-in-core")]
    assert [found.request_id for found in matching_requests(query, received, core)] == names


def test_the_state_of_requests_on_other_instances_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    core = scheduler_core()
    core.cycle([arrival("r")], ARRIVAL_S)
    monkeypatch.setattr(core.table, "entries", [])
    assert list(matching_requests(UnfinishedQuery(instance="a-1"), [waiting()], core)) == []


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [(f"00-{TRACE_ID}-b7ad6b7169203331-01", TRACE_ID), ("", ""), ("nothing", ""), ("00-short-b7-01", "")],
)
def test_the_id_of_a_trace_is_read_from_a_valid_context(traceparent: str, trace_id: str) -> None:
    arrived = arrival("r")
    arrived.trace["traceparent"] = traceparent
    assert arrived.trace_id == trace_id
