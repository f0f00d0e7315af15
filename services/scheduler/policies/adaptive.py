"""The common part of the policies that choose a threshold for every step: their candidates, estimates and settings."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from services.scheduler.policies.policy import Policy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.step_estimates import StepEstimates
from shared.arrays import Float64


@dataclass(slots=True, kw_only=True)
class AdaptivePolicy(Policy):
    """Units: thresholds ascending; guaranteed_priority is the lowest priority that keeps the full range."""

    candidates: Float64  # [c], the administrator's thresholds, ascending
    estimates: StepEstimates
    load_control: bool = True  # False: every request may use the highest candidate; for simulations
    guaranteed_priority: int | None = None

    @classmethod
    def build(cls, settings: SchedulerSettings, estimates: StepEstimates, **options: Any) -> Self:
        candidates, priority = np.array(settings.candidates), settings.guaranteed_priority
        return cls(candidates=candidates, estimates=estimates, guaranteed_priority=priority, **options)
