"""One decision: the workload of the window, a plan for it, and whether to change anything. Pure but for the solver."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from services.reconfigurator.monitoring.workload_stats import (
    PlanningSettings,
    RequestSample,
    class_loads,
    tokens_per_step,
    workload,
)
from services.reconfigurator.nodes import Node, gpus_of, to_placements, to_spec
from services.reconfigurator.planning.plan import Plan, Solver
from services.reconfigurator.planning.plan_input import plan_input
from services.reconfigurator.schedule import PlanTrigger
from shared.errors import DilaserveError
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanRecord, PlanState
from shared.messages.requests import ThresholdUse
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """What a decision is made from."""

    seen: Sequence[RequestSample]  # the requests of the occasion's span
    uses: Sequence[ThresholdUse]
    trigger: PlanTrigger
    running: Collection[InstanceSpec]
    nodes_up: Collection[str]
    profile: LatencyProfile
    known_tokens_per_step: Mapping[float, float]  # per step by threshold, of earlier windows


@dataclass(frozen=True, slots=True)
class Planner:
    """What stays the same from decision to decision. `prior` are tokens per step by threshold before any were seen."""

    nodes: Sequence[Node]
    planning: PlanningSettings
    prior: Mapping[float, float]
    cached: bool
    solver: Solver
    solve_s: float

    def decide(self, now: PlanningContext, at_s: float) -> PlanRecord:
        """Units: at_s is Unix time. Returns: a record in the state RUNNING if the plan is to be carried out."""
        loads = class_loads(now.seen, now.trigger.span_s)
        tokens = tokens_per_step(now.uses, self.planning.thresholds, {**self.prior, **now.known_tokens_per_step})
        record = PlanRecord(
            plan_id=datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%S-%f"),
            decided_s=at_s,
            state=PlanState.STAYED,
            reason="",
            classes=loads,
            tokens_per_step=tokens,
            before=sorted(now.running, key=lambda spec: (spec.node, spec.gpus)),
        )
        if not now.running:
            return self._begin(now, record)
        degrees = [tp for tp in self.planning.tp_degrees if self._is_known(now.profile, tp)]
        if not loads:
            return replace(record, reason=f"no request arrived in the last {now.trigger.span_s:g} s")
        if not tokens:
            return replace(record, reason="how many tokens a step unmasks is not known yet")
        if not degrees:
            return replace(record, reason="no latency profile of a TP degree to plan with is known yet")
        try:
            plan = self._plan(now, record, degrees)
        except (DilaserveError, ValueError) as error:
            return replace(record, reason=f"no plan could be made: {error}")
        take = plan.decision.take and bool(plan.steps)
        return replace(
            record,
            state=PlanState.RUNNING if take else PlanState.STAYED,
            reason=now.trigger.explain(plan.decision.reason),
            status=plan.status.value,
            mean_threshold=plan.mean_threshold,
            slack_s=plan.slack_s,
            solve_s=plan.solve_s,
            target=[to_spec(instance, self.nodes) for instance in plan.instances],
        )

    def _begin(self, now: PlanningContext, record: PlanRecord) -> PlanRecord:
        """Where nothing runs, there is nothing to lose: what is best for throughput, until the workload is known."""
        tp = min(self.planning.tp_degrees)
        target = [
            InstanceSpec(node=node.name, gpus=tuple(range(first, first + tp)))
            for node in self.nodes
            if node.name in now.nodes_up
            for first in range(0, node.gpus - tp + 1, tp)
        ]
        state = PlanState.RUNNING if target else PlanState.STAYED
        return replace(record, state=state, reason="nothing runs: the smallest TP degree everywhere", target=target)

    def _plan(self, now: PlanningContext, record: PlanRecord, degrees: Sequence[int]) -> Plan:
        from services.reconfigurator.planning.planner import make_plan  # noqa: PLC0415  (Pyomo: only where a plan is made)

        nodes = gpus_of(self.nodes, now.nodes_up)
        rps_buffer = now.trigger.buffer(self.planning.rps_buffer)
        planning = dataclasses.replace(self.planning, tp_degrees=degrees, rps_buffer=rps_buffer)
        asked = workload(record.classes, record.tokens_per_step, planning, nodes)
        current = to_placements(now.running, self.nodes, now.nodes_up)
        return make_plan(
            plan_input(asked, now.profile, cached=self.cached),
            current,
            solver=self.solver,
            time_limit_s=self.solve_s,
            growing=now.trigger.growing,
        )

    def _is_known(self, profile: LatencyProfile, tp: int) -> bool:
        kinds = [StepKind.RECOMPUTE, StepKind.CACHE] if self.cached else [StepKind.RECOMPUTE]
        return all((tp, kind) in profile.curves for kind in kinds)
