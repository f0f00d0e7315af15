"""One decision: a plan for the window's workload, and whether to carry it out. Pure but for the solver."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from services.reconfigurator.nodes import Node, gpus_of, to_placements, to_spec
from services.reconfigurator.planning.plan import Plan
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.workload_stats import (
    PlanningSettings,
    RequestSample,
    class_loads,
    tokens_per_step,
    workload,
)
from services.reconfigurator.schedule import PlanTrigger
from shared.errors import DilaserveError
from shared.messages.launch import InstanceSpec
from shared.messages.plans import ClassLoad, PlanRecord, PlanState
from shared.messages.requests import ThresholdUse
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """The observations that a decision is based on."""

    requests: Sequence[RequestSample]  # arrivals of the trigger's span
    threshold_uses: Sequence[ThresholdUse]
    trigger: PlanTrigger
    profile: LatencyProfile
    running: Collection[InstanceSpec] = ()
    nodes_up: Collection[str] = ()
    known_tokens_per_step: Mapping[float, float] = field(default_factory=dict)  # by threshold, of earlier windows
    block_length: int = 0  # usual one of the model; 0: that of the settings
    target: Sequence[InstanceSpec] | None = None  # that of a transition in progress; None: there is none

    @property
    def heading_for(self) -> Collection[InstanceSpec]:
        """The instances that exist without a new plan, possibly after the transition in progress."""
        return self.running if self.target is None else self.target


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes decisions. `prior` are tokens per step by threshold that count before any were observed."""

    nodes: Sequence[Node]
    planning: PlanningSettings
    prior: Mapping[float, float]
    cached: bool
    solve_s: float

    def decide(self, context: PlanningContext, at_s: float) -> PlanRecord:
        """Units: at_s in Unix time. Returns: a record in the state RUNNING if the plan is to be carried out."""
        record = self._decide(context, at_s)
        return msgspec.structs.replace(record, reason=context.trigger.explain(record.reason))

    def _decide(self, context: PlanningContext, at_s: float) -> PlanRecord:
        loads, tokens, degrees = self._observed(context)
        record = PlanRecord(
            plan_id=datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%S-%f"),
            decided_s=at_s,
            state=PlanState.STAYED,
            reason="",
            classes=loads,
            tokens_per_step=tokens,
            before=sorted(context.running),
        )
        if not context.heading_for:
            return self._start_all(context, record)
        if not loads:
            return _stay(record, f"no request arrived in the last {context.trigger.span_s:g} s")
        if not tokens:
            return _stay(record, "how many tokens a step unmasks is not known yet")
        if not degrees:
            return _stay(record, "no latency profile of a TP degree to plan with is known yet")
        try:
            plan = self._plan(context, record, degrees)
        except (DilaserveError, ValueError) as error:
            return _stay(record, f"no plan could be made: {error}")
        target = [to_spec(instance, self.nodes) for instance in plan.instances]
        changes = plan.steps if context.target is None else set(target) != set(context.target)
        reason = plan.decision.reason
        if context.target is not None:
            reason = f"during a transition, whose target counts as the current instances: {reason}"
        return msgspec.structs.replace(
            record,
            state=PlanState.RUNNING if plan.decision.take and changes else PlanState.STAYED,
            reason=reason,
            status=plan.status.value,
            mean_threshold=plan.mean_threshold,
            slack_s=plan.slack_s,
            solve_s=plan.solve_s,
            stage1_s=plan.stage1_s,
            stage2_s=plan.stage2_s,
            target=target,
        )

    def wanted_gpus(self, context: PlanningContext, min_threshold: float) -> int | None:
        """The fewest GPUs with which the window's workload meets every SLO at a mean threshold of `min_threshold`, or
        at the highest one. Returns: 0 without arrivals; None if the costs are not known, or no number suffices."""
        from services.reconfigurator.planning.smallest_cluster import gpus_for_threshold  # noqa: PLC0415  (as below)

        loads, tokens, degrees = self._observed(context)
        if not (loads and tokens and degrees):
            return None if loads else 0
        per_node = max([*degrees, *(node.gpus for node in self.nodes)])
        p = self._plan_input(context, loads, tokens, degrees, [per_node])
        highest = min(min_threshold, max(self.planning.thresholds))
        return gpus_for_threshold(p, highest, per_node, self.solve_s)

    def _start_all(self, context: PlanningContext, record: PlanRecord) -> PlanRecord:
        """Start with the highest throughput until the workload is known."""
        tp = min(self.planning.tp_degrees)
        target = [
            InstanceSpec(node=node.name, gpus=tuple(range(first, first + tp)))
            for node in self.nodes
            if node.name in context.nodes_up
            for first in range(0, node.gpus - tp + 1, tp)
        ]
        state = PlanState.RUNNING if target else PlanState.STAYED
        reason = "nothing runs: the smallest TP degree everywhere"
        return msgspec.structs.replace(record, state=state, reason=reason, target=target)

    def _plan(self, context: PlanningContext, record: PlanRecord, degrees: Sequence[int]) -> Plan:
        from services.reconfigurator.planning.planner import make_plan  # noqa: PLC0415  (imports Pyomo, which is slow)

        nodes = gpus_of(self.nodes, context.nodes_up)
        return make_plan(
            self._plan_input(context, record.classes, record.tokens_per_step, degrees, nodes),
            to_placements(context.running, self.nodes, context.nodes_up),
            heading_for=to_placements(context.heading_for, self.nodes, context.nodes_up),
            time_limit_s=self.solve_s,
            growing=context.trigger.growing,
        )

    def _plan_input(
        self,
        context: PlanningContext,
        loads: Sequence[ClassLoad],
        tokens: Mapping[float, float],
        degrees: Sequence[int],
        nodes: Sequence[int],
    ) -> PlanInput:
        rps_buffer = context.trigger.buffer(self.planning.rps_buffer)
        block_length = context.block_length or self.planning.block_length
        planning = replace(self.planning, tp_degrees=degrees, rps_buffer=rps_buffer, block_length=block_length)
        return PlanInput(workload(loads, tokens, planning, nodes), context.profile, cached=self.cached)

    def _observed(self, context: PlanningContext) -> tuple[list[ClassLoad], dict[float, float], list[int]]:
        """The loads of the classes, the tokens per step by threshold, and the TP degrees whose costs are known."""
        loads = class_loads(context.requests, context.trigger.span_s)
        prior = {**self.prior, **context.known_tokens_per_step}
        tokens = tokens_per_step(context.threshold_uses, self.planning.thresholds, prior)
        kinds = list(StepKind) if self.cached else [StepKind.RECOMPUTE]
        curves = context.profile.curves
        return loads, tokens, [tp for tp in self.planning.tp_degrees if all((tp, kind) in curves for kind in kinds)]


def _stay(record: PlanRecord, reason: str) -> PlanRecord:
    return msgspec.structs.replace(record, reason=reason)
