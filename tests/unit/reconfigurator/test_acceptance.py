"""When a plan is accepted, and the decision where nothing runs."""

from functools import partial

import pytest

from services.reconfigurator.nodes import Node
from services.reconfigurator.planning.acceptance import should_reconfigure
from services.reconfigurator.planning.decision import Planner, PlanningContext
from services.reconfigurator.planning.plan import Capacity, PlanStatus
from services.reconfigurator.planning.solver import SolverStatus
from services.reconfigurator.planning.workload_stats import PlanningSettings
from services.reconfigurator.schedule import PlanTrigger
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanState
from shared.profile import LatencyProfile

decide = partial(should_reconfigure, whole_slack_s=10, fallen_back=False)


def capacity(mean_threshold: float, slack_s: float, sustains: float = 2.0) -> Capacity:
    return Capacity(
        status=PlanStatus.OPTIMAL,
        mean_threshold=mean_threshold,
        slack_s=slack_s,
        instances_per_tp={1: 2},
        busy_per_tp={1: 1.0},
        sustains=sustains,
        classes=[],
    )


@pytest.mark.parametrize(
    ("proposal", "current", "take", "reason"),
    [
        (capacity(0.88, 1), capacity(0.80, 5), True, "primary objective improves"),
        (capacity(0.87, 1), capacity(0.80, 1), False, "neither"),
        (capacity(0.80, 5.5), capacity(0.80, 5), True, "secondary objective improves"),
        (capacity(0.80, 5.4), capacity(0.80, 5), False, "neither"),
        (capacity(0.79, 50), capacity(0.80, 5), False, "neither"),
        (capacity(0.80, 1), capacity(0.80, 0), True, "secondary objective improves"),
        (capacity(0.80, 0), capacity(0.80, 0), False, "neither"),
        (capacity(0.80, 1e-4), capacity(0.80, 1e-6), False, "neither"),  # nothing to speak of, of an SLO of 10 s
        (capacity(0.80, 1e-4), capacity(0.80, -1e-4), False, "neither"),
        (capacity(0.80, 0.1), capacity(0.80, 0), True, "secondary objective improves"),
        (capacity(0.50, 0), SolverStatus.INFEASIBLE, True, "cannot meet every SLO"),
        (capacity(0.90, 9), SolverStatus.UNKNOWN, False, "could not be evaluated"),
        (SolverStatus.UNKNOWN, capacity(0.80, 5), False, "no plan was found"),
        (SolverStatus.UNKNOWN, SolverStatus.INFEASIBLE, False, "no plan was found"),
        (SolverStatus.INFEASIBLE, SolverStatus.INFEASIBLE, True, "highest throughput"),
    ],
)
def test_a_plan_is_accepted_from_a_gain_of_10_percent(
    proposal: Capacity | SolverStatus, current: Capacity | SolverStatus, reason: str, *, take: bool
) -> None:
    decision = decide(proposal, current)
    assert (decision.take, reason in decision.reason) == (take, True), decision.reason


@pytest.mark.parametrize(
    ("proposal", "current", "take"),
    [
        (capacity(0.88, 1), capacity(0.80, 5), True),
        (capacity(0.80, 4, sustains=3.3), capacity(0.80, 5, sustains=3.0), True),
        (capacity(0.80, 4, sustains=3.2), capacity(0.80, 5, sustains=3.0), False),
        (capacity(0.79, 5, sustains=9.0), capacity(0.80, 5, sustains=3.0), False),
        (capacity(0.80, 9), capacity(0.80, 5), False),
        (capacity(0.80, 4, sustains=30.0), capacity(0.80, 5, sustains=10.0), False),  # room enough
    ],
)
def test_under_growing_load_capacity_is_the_secondary_objective(
    proposal: Capacity, current: Capacity, *, take: bool
) -> None:
    decision = decide(proposal, current, growing=True)
    assert decision.take == take, decision.reason


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "take"),
    [(6.0, 3.0, True), (6.0, 2.0, True), (6.0, 1.9, False), (1.9, 1.8, False), (1.8, 1.8, True)],
)
def test_capacity_is_reduced_only_to_twice_the_load(before: float, after: float, *, growing: bool, take: bool) -> None:
    proposal, current = capacity(0.90, 5, sustains=after), capacity(0.80, 5, sustains=before)
    decision = decide(proposal, current, growing=growing)
    assert decision.take == take, decision.reason


@pytest.mark.parametrize(
    ("current_at_less_load", "proposed", "take"),
    [
        (capacity(0.80, 5, sustains=1.65), 1.6, True),  # 1.5 times the whole load
        (capacity(0.80, 5, sustains=1.65), 1.4, False),
        (capacity(0.80, 5, sustains=4.4), 2.0, True),
        (SolverStatus.INFEASIBLE, 1.4, True),
        (SolverStatus.UNKNOWN, 1.4, True),
    ],
)
def test_instances_that_nearly_meet_all_slos_keep_their_capacity(
    current_at_less_load: Capacity | SolverStatus, proposed: float, *, take: bool
) -> None:
    proposal, current = capacity(0.50, 0, sustains=proposed), SolverStatus.INFEASIBLE
    decision = decide(proposal, current, current_at_less_load=current_at_less_load)
    assert decision.take == take, decision.reason


def test_a_fallback_configuration_is_kept() -> None:
    assert not decide(SolverStatus.INFEASIBLE, SolverStatus.INFEASIBLE, fallen_back=True).take


def test_the_reason_states_the_objectives() -> None:
    reason = decide(capacity(0.88, 6), capacity(0.80, 5)).reason
    assert "0.8000 to 0.8800 (+10.0%)" in reason
    assert "5 to 6 (+20.0%)" in reason
    assert "sustains 2.0 to 2.0 times the load" in reason


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
