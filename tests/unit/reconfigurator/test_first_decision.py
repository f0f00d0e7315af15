"""The decision where nothing runs."""

from services.reconfigurator.nodes import Node
from services.reconfigurator.planning.decision import Planner, PlanningContext
from services.reconfigurator.planning.workload_stats import PlanningSettings
from services.reconfigurator.schedule import PlanTrigger
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanState
from shared.profile import LatencyProfile

NODES = (Node(name="a", gpus=5), Node(name="b", gpus=2))


def begin(*, nodes_up: set[str]) -> tuple[PlanState, list[InstanceSpec]]:
    planning = PlanningSettings(thresholds=(0.9,), tp_degrees=(4, 2), batch_sizes=(32,))
    planner = Planner(NODES, planning, {}, cached=False, solve_s=1.0)
    now = PlanningContext(
        requests=[],
        threshold_uses=[],
        trigger=PlanTrigger(1.0),
        running=[],
        nodes_up=nodes_up,
        profile=LatencyProfile({}),
        known_tokens_per_step={},
    )
    record = planner.decide(now, at_s=0.0)
    return record.state, record.target


def test_without_instances_the_smallest_degree_is_started_everywhere() -> None:
    state, target = begin(nodes_up={"a", "b"})
    places = [("a", (0, 1)), ("a", (2, 3)), ("b", (0, 1))]
    assert state is PlanState.RUNNING
    assert target == [InstanceSpec(node=node, gpus=gpus) for node, gpus in places]


def test_without_nodes_nothing_is_started() -> None:
    assert begin(nodes_up=set()) == (PlanState.STAYED, [])
