"""Policies choose instances and thresholds. A policy reads the table and the fleet; it writes only its own columns."""

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Bool, Float64, Int64
from shared.messages.stats import ClusterLoad

LOAD_CONTROL_INTERVAL_S = 0.05  # maximum time between two runs of load control


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
    step_latency_s: Float64  # expected on the request's instance, at its present load


class Policy(ABC):
    """The part of the core that differs between serving systems.

    Without `forms_batches`, every placed request steps in every iteration of its instance. With it, a batch is chosen
    when the instance's next iteration has none yet, by `select`.
    """

    forms_batches: ClassVar[bool] = False
    moves: MigrationPolicy
    uses_estimates: bool  # whether the core requests estimates from the step predictor

    def control(self, table: RequestTable, fleet: Fleet, now_s: float) -> ClusterLoad | None:  # noqa: ARG002
        """Run load control: when a request arrives, when an instance joins, changes or leaves, and periodically.

        Returns: what it compared, if it counts tokens and a request is active.
        """
        return None

    @property
    def lowest_threshold(self) -> float:
        """The lowest threshold of a request without a quality floor; 0: the lowest candidate."""
        return 0.0

    @abstractmethod
    def place(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> tuple[Int64, Int64]:
        """The instances of some of `rows`: idle requests that have none or may move.

        Shapes: rows [n] -> rows [m] and the index of the instance of each, [m]; NOWHERE: deferred.
        """

    @abstractmethod
    def choose(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> ThresholdChoice:
        """The confidence threshold of the next step of each of `rows`, [n]."""

    def select(self, rows: Int64, joined: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> Bool:  # noqa: ARG002
        """Which of `rows` step in the next batch of their instance; `joined` are the rows that are in it already.

        An instance without a row in `joined` must get at least one. Shapes: rows [n] -> [n].
        """
        return np.ones(len(rows), dtype=np.bool_)
