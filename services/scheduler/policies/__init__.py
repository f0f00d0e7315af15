"""Policies choose instances and thresholds. A policy reads the table and the fleet; it writes only its own columns."""

import enum
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float64, Int64
from shared.messages.stats import ClusterLoad


class MigrationPolicy(enum.StrEnum):
    """When a request may move to another instance."""

    NEVER = "never"
    AT_RECOMPUTE = "recompute"  # when its next step rebuilds the KV cache anyway; without a cache, at any step
    AT_ANY_STEP = "any"  # with a cache, the cost is an additional recompute step


@dataclass(frozen=True, slots=True)
class ThresholdChoice:
    """Thresholds chosen for steps, and the values that decided. Shapes: all [n]."""

    thresholds: Float64
    allowed: Float64  # the highest threshold that load control allows
    time_left_s: Float64  # predicted time to the last token at the threshold; NaN without a prediction
    step_latency_s: Float64  # of a recompute step on the request's instance, at its present load


class Policy(Protocol):
    """The part of the core that differs between serving systems."""

    @property
    def moves(self) -> MigrationPolicy: ...

    @property
    def uses_estimates(self) -> bool:
        """Whether the core requests estimates from the step predictor."""

    def control(self, table: RequestTable, fleet: Fleet) -> ClusterLoad | None:
        """Run load control: when a request arrives, when an instance joins, changes or leaves, and periodically.

        Returns: None if the policy has no load control or no request is active.
        """

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet) -> Int64:
        """The instance for the next step of each of `rows` (in the order of service); NOWHERE: deferred.

        Shapes: rows [n] -> [n].
        """

    def choose(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> ThresholdChoice:
        """The confidence threshold of the next step of each of `rows`, [n]."""
