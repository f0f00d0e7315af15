"""Runs both stages and the acceptance rule. Pure but for the clock and the solver's process."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from time import monotonic

import msgspec

from services.reconfigurator.planning.acceptance import MIN_GAIN, UNMET, should_reconfigure
from services.reconfigurator.planning.packing import fill_spare_gpus
from services.reconfigurator.planning.plan import Capacity, Decision, Placement, Plan, PlanStatus
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.solver import SolverStatus
from services.reconfigurator.planning.stage1_capacity import find_capacity
from services.reconfigurator.planning.stage2_assignment import plan_transition
from services.reconfigurator.planning.throughput import fall_back

TIME_LIMIT_S = 60.0  # for each stage


def make_plan(
    p: PlanInput,
    current: Sequence[Placement],
    *,
    heading_for: Sequence[Placement] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    growing: bool = False,
) -> Plan:
    """Plan for the workload, from the instances that run now; if it is `growing`, for room instead of slack.

    During a transition, whose target is `heading_for`, the decision compares the plan with that target.

    Raises: BadInput if `current` does not fit the nodes; RetryLater if Stage 2 needs more time.
    """
    start_s = monotonic()
    found = find_capacity(p, time_limit_s, growing=growing)
    capacity = _capacity_or_fallback(p, found, growing=growing)
    stage1_s = monotonic() - start_s
    assignment = plan_transition(current, capacity.instances_per_tp, p.nodes, time_limit_s)
    stage2_s = monotonic() - start_s - stage1_s
    status = capacity.status
    if status is PlanStatus.OPTIMAL and assignment.gap != 0:
        status = PlanStatus.FEASIBLE
    return Plan(
        **msgspec.structs.asdict(msgspec.structs.replace(capacity, status=status)),
        instances=assignment.instances,
        preserved=assignment.preserved,
        preserved_gap=assignment.gap,
        steps=assignment.steps,
        decision=_decide(
            p, found, capacity, current if heading_for is None else heading_for, time_limit_s, growing=growing
        ),
        solve_s=monotonic() - start_s,
        stage1_s=stage1_s,
        stage2_s=stage2_s,
    )


def _capacity_or_fallback(p: PlanInput, found: Capacity | SolverStatus, *, growing: bool) -> Capacity:
    if isinstance(found, Capacity):
        return found if growing else fill_spare_gpus(p, found)
    infeasible = found is SolverStatus.INFEASIBLE
    return fall_back(p, UNMET if infeasible else "none was found within the time limit")


def _decide(
    p: PlanInput,
    found: Capacity | SolverStatus,
    target: Capacity,
    current: Sequence[Placement],
    time_limit_s: float,
    *,
    growing: bool,
) -> Decision:
    if not current:
        return Decision(take=True, reason="nothing runs yet")
    instances = Counter(placement.tp for placement in current)
    evaluate = partial(find_capacity, time_limit_s=time_limit_s, instances=instances)
    evaluated = evaluate(p)
    failing = isinstance(found, Capacity) and evaluated is SolverStatus.INFEASIBLE
    return should_reconfigure(
        target if isinstance(found, Capacity) else found,
        evaluated,
        whole_slack_s=float(p.RPS @ p.SLO),
        fallen_back=instances == Counter(target.instances_per_tp),
        growing=growing,
        current_at_less_load=evaluate(p.at_rates(p.RPS / (1 + MIN_GAIN))) if failing else SolverStatus.UNKNOWN,
    )
