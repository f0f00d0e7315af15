"""Policies choose instances and thresholds. A policy reads the table and the fleet; it writes only its own columns."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.decision_log import ThresholdChoice
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_estimates import StepEstimates
from shared.arrays import Bool, Float64, Int64
from shared.messages.stats import ClusterLoad

LOAD_CONTROL_INTERVAL_S = 0.05  # maximum time between two runs of load control


class Policy(ABC):
    """The part of the core that differs between serving systems."""

    moves: MigrationPolicy

    @classmethod
    @abstractmethod
    def build(cls, settings: SchedulerSettings, estimates: StepEstimates, **options: Any) -> Self:
        """The policy by these settings. `options` are further fields, for simulations."""

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
        """Which of `rows` step in the next batch of their instance, by default all; `joined` are in it already.

        An instance without a row in `joined` must get at least one. Shapes: rows [n] -> [n].
        """
        return np.ones(len(rows), dtype=np.bool_)


@dataclass(slots=True, kw_only=True)
class AdaptivePolicy(Policy):
    """Chooses a threshold for every step."""

    candidates: Float64  # [c], the administrator's thresholds, ascending
    estimates: StepEstimates
    load_control: bool = True  # False: every request may use the highest candidate; for simulations
    guaranteed_priority: int | None = None  # the lowest one that keeps the full range

    @classmethod
    def build(cls, settings: SchedulerSettings, estimates: StepEstimates, **options: Any) -> Self:
        candidates, priority = np.array(settings.candidates), settings.guaranteed_priority
        return cls(candidates=candidates, estimates=estimates, guaranteed_priority=priority, **options)
