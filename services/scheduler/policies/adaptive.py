"""The common part of the policies that choose a threshold for every step: their candidates, estimates and settings."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from services.scheduler.policies import MigrationPolicy, Policy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.step_estimates import StepEstimates
from shared.arrays import Float64


@dataclass(slots=True, kw_only=True)
class AdaptivePolicy(Policy):
    """Units: thresholds ascending; guaranteed_priority is the lowest priority that keeps the full range."""

    candidates: Float64  # [c], the administrator's thresholds, ascending
    estimates: StepEstimates
    moves: MigrationPolicy = MigrationPolicy.AT_RECOMPUTE
    uses_estimates: bool = True
    load_control: bool = True
    guaranteed_priority: int | None = None

    @classmethod
    def build(cls, settings: SchedulerSettings, estimates: StepEstimates) -> Self:
        return cls(
            candidates=np.array(settings.candidates),
            estimates=estimates,
            moves=settings.moves or MigrationPolicy.AT_RECOMPUTE,
            uses_estimates=settings.estimates == "predictor",
            load_control=settings.load_control,
            guaranteed_priority=settings.guaranteed_priority,
            **cls.own_fields(settings),
        )

    @classmethod
    def own_fields(cls, settings: SchedulerSettings) -> dict[str, Any]:  # noqa: ARG003
        """The fields of the subclass."""
        return {}
