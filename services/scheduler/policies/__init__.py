"""How the core chooses instances and thresholds. A policy reads the table and the fleet, and writes only the
columns of the table that are its own."""

import enum
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float64, Int64
from shared.messages.stats import ClusterLoad


class MigrationPolicy(enum.StrEnum):
    """When a request may leave an instance that serves it."""

    NEVER = "never"
    AT_RECOMPUTE = "recompute"  # when its next step rebuilds the KV cache anyway; without a cache, at any step
    AT_ANY_STEP = "any"  # with a cache, the cost is an additional recompute step


@dataclass(frozen=True, slots=True)
class ThresholdChoice:
    """Thresholds chosen for steps, and what they were judged by. Shapes: all [n]."""

    thresholds: Float64
    allowed: Float64  # the highest that load control leaves to each request
    time_left_s: Float64  # predicted, to the last token, at the threshold; NaN where nothing is predicted
    step_latency_s: Float64  # of a recompute step on the request's instance, at its present load


class Policy(Protocol):
    """What differs between serving systems; the rest of the core is common to all."""

    @property
    def moves(self) -> MigrationPolicy: ...

    @property
    def uses_estimates(self) -> bool:
        """Whether the step predictor is to be asked."""
        ...

    def control(self, table: RequestTable, fleet: Fleet) -> ClusterLoad | None:
        """Before anything is placed, in most cycles: always when requests have come, or instances have come or gone.

        Returns: what was judged by; None if nothing was.
        """
        ...

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet) -> Int64:
        """The slot for the next step of each of `rows` (in the order of service), NOWHERE to defer.

        Shapes: rows [n] -> [n].
        """
        ...

    def choose(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> ThresholdChoice:
        """The confidence threshold of the next step of each of `rows`, [n]."""
        ...
