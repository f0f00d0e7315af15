"""The default policy without one of its parts each, for the ablation; importing the module registers them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.scheduler.algorithms.placement import place_first_come, step_latency
from services.scheduler.algorithms.work_estimates import BatchLatency
from services.scheduler.policies.dilaserve import DiLaServePolicy
from services.scheduler.registry import POLICIES, PolicyEntry
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Bool, Float64, Int64


@dataclass(slots=True, kw_only=True)
class WithoutRescue(DiLaServePolicy):
    """Every request at the common level, whatever its deadline."""

    def _fitting(self, steps_left: Float64, left_s: Float64, pace: Float64) -> Float64:  # noqa: ARG002
        return np.full(len(left_s), self.candidates[-1])


@dataclass(slots=True, kw_only=True)
class WithoutSeparation(DiLaServePolicy):
    """Both kinds of step in every iteration."""

    def _separates(self, instances: Int64, fleet: Fleet) -> Bool:  # noqa: ARG002
        return np.zeros(len(instances), dtype=np.bool_)


@dataclass(slots=True, kw_only=True)
class WithoutCut(DiLaServePolicy):
    """No batch is cut for an urgent request."""

    def _tight(
        self,
        rows: Int64,  # noqa: ARG002
        latency: BatchLatency,  # noqa: ARG002
        table: RequestTable,  # noqa: ARG002
        fleet: Fleet,
        now_s: float,  # noqa: ARG002
    ) -> Bool:
        return np.zeros(len(fleet.tokens), dtype=np.bool_)


@dataclass(slots=True, kw_only=True)
class WithoutDeadlineOrder(DiLaServePolicy):
    """First come, first served: no displacement, no reservation, no ageing."""

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> tuple[Int64, Int64]:  # noqa: ARG002
        waiting = rows[table.instance[rows] < 0]
        return place_first_come(waiting, table, fleet, step_latency)


@dataclass(slots=True, kw_only=True)
class WithoutReservation(DiLaServePolicy):
    """No instance is kept free for an urgent request."""

    urgent_share: ClassVar[float] = -np.inf


@dataclass(slots=True, kw_only=True)
class WithoutAgeing(DiLaServePolicy):
    """Late requests come first, as their deadlines do."""

    late_slos: ClassVar[float] = 0.0


@dataclass(slots=True, kw_only=True)
class WithoutCorrection(DiLaServePolicy):
    """Iterations are expected to take as long as the profile states."""

    def control(self, table: RequestTable, fleet: Fleet, now_s: float) -> None:
        fleet.correction.fill(1.0)
        super(WithoutCorrection, self).control(table, fleet, now_s)


PARTS: dict[str, type[DiLaServePolicy]] = {
    "rescue": WithoutRescue,
    "separation": WithoutSeparation,
    "cut": WithoutCut,
    "deadline-order": WithoutDeadlineOrder,
    "reservation": WithoutReservation,
    "ageing": WithoutAgeing,
    "correction": WithoutCorrection,
    "difficulty": DiLaServePolicy,
}
for part, policy in PARTS.items():
    POLICIES[f"without-{part}"] = PolicyEntry(
        policy=f"{__name__}:{policy.__name__}",
        uses_estimates=True,
        needs_profile=True,
        learns_difficulty=part != "difficulty",
    )
