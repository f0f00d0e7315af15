"""The planner in virtual time, with CBC."""

from dataclasses import replace

import numpy as np
import pytest

from services.scheduler.settings import SchedulerSettings
from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.reconfiguration import STOP_S, SimulatedReconfiguration, place
from simulator.result import Records, summarize
from simulator.scenario import Failure, Scenario, simulate
from simulator.steps_table import StepsTable
from simulator.workload import ArrivalTrace, make_trace

PROFILE = LatencyProfile.from_rows(
    (tp, tokens, kind, share * (0.020 + tokens * per_token))
    for tp, share in ((1, 1.0), (2, 0.7))
    for kind, per_token in ((StepKind.RECOMPUTE, 0.04e-3), (StepKind.CACHE, 0.2e-3))
    for tokens in (32, 8192)
)
STEPS = StepsTable(np.array([0.5, 0.9]), np.array([7.0, 3.25]))
SETTINGS = SimulatedReconfiguration(gpus_per_node=2, interval_s=30.0, window_s=30.0, load_s=5.0)


def light(minutes: float) -> ArrivalTrace:
    """One request in five seconds, which one TP-2 serves faster than a TP-1."""
    count = int(12 * minutes)
    return make_trace(5.0 * np.arange(count, dtype=np.float64), np.full(count, 100), np.full(count, 128))


def run(
    workload: ArrivalTrace, cluster: tuple[int, ...], *failures: Failure, settings: SimulatedReconfiguration = SETTINGS
) -> Records:
    scheduler = SchedulerSettings(model="m", policy="dilaserve", cache="dual", thresholds=(0.5, 0.9))
    return simulate(
        Scenario(
            profile=PROFILE,
            steps=STEPS,
            instances=cluster,
            settings=scheduler,
            predictor="noisy",
            slo_s=3.0,
            reconfiguration=settings,
            failures=failures,
        ),
        workload,
    )


def test_under_light_load_two_tp1_become_one_tp2_and_no_request_is_lost() -> None:
    records = run(light(1.1), (1, 1))
    assert records.completed.all()
    assert records.decisions[0].take
    assert records.decisions[0].t_s == 30.0
    assert [counts for _, counts in records.instances_at] == [{1: 1}, {1: 2}, {1: 1}, {}, {2: 1}]
    (stopped_s, _), (served_s, _) = records.instances_at[-2:]
    assert served_s - stopped_s == pytest.approx(STOP_S + SETTINGS.load_s, abs=0.1)
    result = summarize(records, light(1.1))
    assert result["timeline"][-1]["instances_per_tp"] == {"2": 1}
    assert result["decisions"][0]["reason"]


def test_a_sudden_rise_triggers_a_decision_before_the_next_interval() -> None:
    between_s = np.repeat([5.0, 0.1], [8, 150])
    records = run(make_trace(np.cumsum(between_s), np.full(158, 100), np.full(158, 128)), (2,))
    early = [decision for decision in records.decisions if decision.reason.startswith("early")]
    assert [decision.t_s for decision in early if decision.take] == [42.0]
    assert {2: 1} in [counts for since_s, counts in records.instances_at if since_s < 42.0]
    assert records.instances_at[-1][1] == {1: 2}


def test_a_rise_during_a_transition_replaces_its_plan() -> None:
    """At 30 s the light load gets one TP-2, whose first stop ends at 32 s; the load rises at 31 s."""
    between_s = np.repeat([5.0, 0.1], [6, 300])
    trace = make_trace(np.cumsum(between_s), np.full(306, 100), np.full(306, 128))
    records = run(trace, (1, 1), settings=replace(SETTINGS, load_s=20.0))
    assert records.completed.all()
    taken = [decision for decision in records.decisions if decision.take]
    assert [(decision.t_s, decision.instances_per_tp) for decision in taken[:2]] == [(30.0, {2: 1}), (36.0, {1: 2})]
    assert "during a transition" in taken[1].reason
    assert records.instances_at[-1][1] == {1: 2}
    assert {2: 1} not in [counts for _, counts in records.instances_at], "the load of the TP-2 was abandoned"
    assert all(sum(tp * count for tp, count in counts.items()) <= 2 for _, counts in records.instances_at)


def test_a_sufficient_configuration_is_kept() -> None:
    records = run(light(0.7), (2,))
    assert records.decisions
    assert not any(decision.take for decision in records.decisions)
    assert len(records.instances_at) == 1


def test_a_window_without_requests_changes_nothing() -> None:
    arrival_s = np.array([0.0, 5.0, 65.0])
    first, second = run(make_trace(arrival_s, np.full(3, 100), np.full(3, 128)), (2,)).decisions[:2]
    assert first.status == "optimal"
    assert (second.take, second.status, second.instances_per_tp) == (False, "", {})
    assert second.reason == "no request arrived in the last 30 s"


def test_the_loss_of_an_instance_triggers_a_new_plan() -> None:
    records = run(light(2), (2,), Failure(at_s=12.0, instance=0))
    assert records.completed.all()
    assert [counts for _, counts in records.instances_at][-1] == {2: 1}


def test_instances_are_placed_on_nodes_in_their_order() -> None:
    assert [(spec.node, spec.gpus) for spec in place((1, 2, 1), 2)] == [
        ("node0", (0,)),
        ("node1", (0, 1)),
        ("node0", (1,)),
    ]
    with pytest.raises(BadInput, match="gpus-per-node 2"):
        place((4,), 2)
