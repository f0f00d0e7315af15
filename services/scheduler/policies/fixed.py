"""The baselines: one threshold for all requests. They differ in when a request may move.

`fixed` and `infaas`: dispatched once, to the instance with the fewest tokens (INFaaS as the paper adapts it).
`llumnix`: the same measure of load, and a request moves at its recompute steps (Llumnix as the paper adapts it).
"""

from dataclasses import dataclass

import numpy as np

from services.scheduler.algorithms.placement import place_first_come, token_load
from services.scheduler.policies import MigrationPolicy, Policy, ThresholdChoice
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_estimates import StepEstimates
from shared.arrays import Int64


@dataclass(frozen=True, slots=True)
class FixedThresholdPolicy(Policy):
    threshold: float = 0.9
    moves: MigrationPolicy = MigrationPolicy.NEVER
    uses_estimates: bool = False

    @property
    def lowest_threshold(self) -> float:
        return self.threshold

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> tuple[Int64, Int64]:  # noqa: ARG002
        return place_first_come(rows, table, fleet, token_load)

    def choose(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> ThresholdChoice:  # noqa: ARG002
        thresholds = np.maximum(self.threshold, table.min_threshold[rows])
        instances = table.instance[rows]
        step_latency_s = fleet.recompute_latency_s(instances, fleet.tokens[instances])
        return ThresholdChoice(thresholds, thresholds, np.full(len(rows), np.nan), step_latency_s)


def build_infaas(settings: SchedulerSettings, _estimates: StepEstimates) -> FixedThresholdPolicy:
    """`infaas` and `fixed`."""
    return FixedThresholdPolicy(settings.one_threshold, settings.moves or MigrationPolicy.NEVER)


def build_llumnix(settings: SchedulerSettings, _estimates: StepEstimates) -> FixedThresholdPolicy:
    return FixedThresholdPolicy(settings.one_threshold, settings.moves or MigrationPolicy.AT_RECOMPUTE)
