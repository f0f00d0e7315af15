"""The baselines: one threshold for all requests, placed on the instance with the fewest tokens.

`infaas`, also named `fixed`: dispatched once (INFaaS as the paper adapts it). `llumnix`: a request moves at its
recompute steps (Llumnix as the paper adapts it).
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from services.scheduler.algorithms.placement import place_first_come, token_load
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.policies.policy import Policy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.decision_log import ThresholdChoice
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_estimates import StepEstimates
from shared.arrays import Int64


@dataclass(frozen=True, slots=True)
class FixedThresholdPolicy(Policy):
    threshold: float = 0.9
    moves: MigrationPolicy = MigrationPolicy.NEVER

    @classmethod
    def build(cls, settings: SchedulerSettings, estimates: StepEstimates, **options: Any) -> Self:  # noqa: ARG003
        return cls(settings.one_threshold, **options)

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


@dataclass(frozen=True, slots=True)
class LlumnixPolicy(FixedThresholdPolicy):
    moves: MigrationPolicy = MigrationPolicy.AT_RECOMPUTE
