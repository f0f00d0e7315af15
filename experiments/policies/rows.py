"""The rows of the tables: the policy, the paper's, constants, baselines, and other estimates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.policies.points import POLICY
from experiments.policies.served_models import Cache
from services.scheduler.registry import INSTALLED
from services.scheduler.settings import SchedulerSettings
from simulator.scenario import PredictorName

ONE_SHOT = "one-shot-estimates"  # the policy without a step predictor


@dataclass(frozen=True, slots=True)
class System:
    """One row: settings of the scheduler beside their defaults, and the source of its estimates."""

    name: str
    settings: Mapping[str, Any]
    predictor: PredictorName = "trained"
    constant: float | None = None  # the threshold of all requests, if it is one

    def scheduler(self, cache: Cache = "dual") -> SchedulerSettings:
        return SchedulerSettings(model="simulated", cache=cache, **self.settings)


def _hundredths(low: int, high: int, step: int) -> list[float]:
    return [float(value) for value in np.arange(low, high + 1, step) / 100]


def _infaas(threshold: float) -> System:
    settings = {"policy": "infaas", "threshold": threshold}
    return System(f"infaas-{threshold:g}", settings, predictor="one-shot", constant=threshold)


def _own_order(threshold: float) -> System:
    settings = {"policy": POLICY, "thresholds": (threshold,)}
    # The oracle takes half the time of the trained predictor
    return System(f"{POLICY}-{threshold:g}", settings, predictor="oracle", constant=threshold)


ROWS = (
    System(POLICY, {"policy": POLICY}),
    System(f"{POLICY}-shed", {"policy": POLICY, "shed": True}),
    System("paper-margin-0", {"policy": "paper", "margin_steps": 0.0}),
    System("paper-margin-1", {"policy": "paper", "margin_steps": 1.0}),
    *(_infaas(threshold) for threshold in _hundredths(50, 90, 5)),
    *(_own_order(threshold) for threshold in _hundredths(50, 90, 10)),
    System("llumnix-0.9", {"policy": "llumnix", "threshold": 0.9}, predictor="one-shot", constant=0.9),
    System("oracle-estimates", {"policy": POLICY}, predictor="oracle"),
    System(ONE_SHOT, {"policy": POLICY}, predictor="one-shot"),
    *(System(name, {"policy": name}) for name in INSTALLED),
)
SYSTEMS: Mapping[str, System] = {row.name: row for row in ROWS}
