"""Decisions from a window's requests, with a real solver."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from services.reconfigurator.nodes import read_nodes
from services.reconfigurator.planning.decision import Planner, PlanningContext
from services.reconfigurator.planning.workload_stats import PlanningSettings, RequestSample
from services.reconfigurator.schedule import PlanTrigger
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanRecord, PlanState
from shared.messages.requests import ThresholdUse
from shared.profile import LatencyProfile
from shared.run_in_process import run_in_process
from tests.support.present import present
from tests.support.workloads import PROFILE

AT_S = 1_800_000_000.0
PLANNING = PlanningSettings(thresholds=[0.5, 0.9], tp_degrees=[1, 2], batch_sizes=[32, 256], rps_buffer=0.0)
PLANNER = Planner(read_nodes(["a:2"]), PLANNING, {0.5: 6.0, 0.9: 2.0}, cached=False, solve_s=30.0)
ON_BOTH, LEFT, RIGHT = (InstanceSpec(node="a", gpus=gpus) for gpus in ((0, 1), (0,), (1,)))


def window(requests: int) -> list[RequestSample]:
    """Requests of 100 + 256 tokens in 10 seconds."""
    return [RequestSample(prompt_tokens=100, output_tokens=256, slo_s=10.0)] * requests


def situation(requests: int, running: Sequence[InstanceSpec]) -> PlanningContext:
    return PlanningContext(
        requests=window(requests),
        threshold_uses=[],
        trigger=PlanTrigger(10.0),
        running=running,
        nodes_up={node.name for node in PLANNER.nodes},
        profile=PROFILE,
        known_tokens_per_step={},
    )


def decided(requests: int, running: Sequence[InstanceSpec], planner: Planner = PLANNER, **changes: Any) -> PlanRecord:
    return planner.decide(dataclasses.replace(situation(requests, running), **changes), AT_S)


async def test_a_decision_can_be_made_in_another_process() -> None:
    there, here = await run_in_process(PLANNER.decide, situation(2, [RIGHT, LEFT]), AT_S), decided(2, [RIGHT, LEFT])
    times = {"solve_s": here.solve_s, "stage1_s": here.stage1_s, "stage2_s": here.stage2_s}
    assert msgspec.structs.replace(there, **times) == here


def test_heavy_load_gets_two_small_instances_and_light_load_one_large() -> None:
    heavy = decided(30, [ON_BOTH])
    assert (heavy.state, heavy.target) == (PlanState.RUNNING, [LEFT, RIGHT])
    light = decided(2, [RIGHT, LEFT])
    assert (light.state, light.before, light.target) == (PlanState.RUNNING, [LEFT, RIGHT], [ON_BOTH])
    assert "improves by at least 10%" in light.reason


def test_requests_with_short_slos_are_not_averaged_with_others() -> None:
    """Half of the requests have an SLO that only the large instance meets; the mean SLO is easy."""
    mixed = [dataclasses.replace(sample, slo_s=slo_s) for sample in window(2) for slo_s in (1.2, 60.0)]
    record = PLANNER.decide(dataclasses.replace(situation(4, [RIGHT, LEFT]), requests=mixed), AT_S)
    assert [(load.name, load.slo_s) for load in record.classes] == [
        ("p128-o256-slo1.2", 1.2),
        ("p128-o256-slo60", 60.0),
    ]
    assert (record.state, record.target) == (PlanState.RUNNING, [ON_BOTH])
    assert "cannot meet every SLO; the proposal can" in record.reason


def test_growth_gets_room_early() -> None:
    steady, growing = decided(2, [ON_BOTH]), decided(2, [ON_BOTH], trigger=PlanTrigger(10.0, rise=0.1))
    assert (steady.state, steady.target) == (PlanState.STAYED, [ON_BOTH])
    assert (growing.state, growing.target) == (PlanState.RUNNING, [LEFT, RIGHT])
    assert (growing.mean_threshold, steady.mean_threshold) == pytest.approx((0.9, 0.9), rel=1e-6)


def test_the_record_holds_the_inputs() -> None:
    record = decided(20, [ON_BOTH], threshold_uses=[ThresholdUse(threshold=0.9, steps=100, tokens=300)])
    [load] = record.classes
    assert (load.name, load.rps) == ("p128-o256", 2.0)
    assert record.tokens_per_step == {0.5: 9.0, 0.9: 3.0}


def test_without_requests_or_planning_data_nothing_changes() -> None:
    blind = dataclasses.replace(PLANNER, prior={})
    other_degrees = dataclasses.replace(PLANNER, planning=dataclasses.replace(PLANNING, tp_degrees=[8]))
    for record, reason in (
        (decided(0, [ON_BOTH]), "no request arrived in the last 10 s"),
        (decided(2, [ON_BOTH], blind), "how many tokens a step unmasks is not known yet"),
        (decided(2, [ON_BOTH], other_degrees), "no latency profile of a TP degree to plan with is known yet"),
        (decided(2, [ON_BOTH], nodes_up=set()), "no plan could be made: no node holds an instance"),
    ):
        assert (record.state, record.target) == (PlanState.STAYED, [])
        assert record.reason.startswith(reason)


def test_during_a_transition_its_target_counts_as_current() -> None:
    same = decided(30, [], target=[LEFT, RIGHT])
    assert (same.state, same.before) == (PlanState.STAYED, [])
    assert same.reason.startswith("during a transition, whose target counts as the current instances: ")
    back = decided(2, [LEFT], target=[LEFT, RIGHT])
    assert (back.state, back.before, back.target) == (PlanState.RUNNING, [LEFT], [ON_BOTH])
    unbegun = decided(2, [ON_BOTH], target=[LEFT, RIGHT])
    assert (unbegun.state, unbegun.target) == (PlanState.RUNNING, [ON_BOTH])
    ahead = decided(30, [ON_BOTH], target=[ON_BOTH])
    assert (ahead.state, ahead.target) == (PlanState.RUNNING, [LEFT, RIGHT])


def test_tokens_per_step_of_earlier_windows_precede_the_prior() -> None:
    assert decided(2, [ON_BOTH], known_tokens_per_step={0.9: 4.0}).tokens_per_step == {0.5: 6.0, 0.9: 4.0}


def test_a_lost_node_gets_no_instances() -> None:
    two = dataclasses.replace(PLANNER, nodes=read_nodes(["a:2", "b:2"]))
    lost = InstanceSpec(node="a", gpus=(0, 1))
    record = decided(2, [lost], two, nodes_up={"b"})
    assert record.state is PlanState.RUNNING
    assert record.target == [InstanceSpec(node="b", gpus=(0, 1))]


def test_the_wanted_gpus_suffice_for_the_threshold_and_fewer_do_not() -> None:
    wanted = PLANNER.wanted_gpus(situation(60, []), 0.9)
    assert wanted is not None

    def reached(gpus: int) -> float:
        planner = dataclasses.replace(PLANNER, nodes=read_nodes([f"a:{gpus}"]))
        return decided(60, [LEFT], planner).mean_threshold or 0.0

    assert reached(wanted) == pytest.approx(0.9)
    assert reached(wanted - 1) < 0.9 - 1e-6
    assert wanted == PLANNER.wanted_gpus(situation(60, []), 1.0)  # no threshold is above 0.9
    less = PLANNER.wanted_gpus(situation(60, []), 0.5)
    assert present(less) < wanted


def test_no_gpus_are_wanted_without_arrivals_and_unknown_without_a_profile() -> None:
    assert PLANNER.wanted_gpus(situation(0, []), 0.9) == 0
    unknown = dataclasses.replace(situation(2, []), profile=LatencyProfile({}))
    assert PLANNER.wanted_gpus(unknown, 0.9) is None
