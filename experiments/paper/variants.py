"""Other readings of the paper's algorithms, as policies; importing the module registers them."""

from dataclasses import dataclass, field, replace

import numpy as np

from services.scheduler.algorithms.placement import place_first_come, step_latency, token_load
from services.scheduler.policies.fixed import LlumnixPolicy
from services.scheduler.policies.paper import PaperPolicy
from services.scheduler.registry import POLICIES, PolicyEntry
from services.scheduler.state.decision_log import ThresholdChoice
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Float64, Int64

AT_ASSIGNMENT, SMALLEST_SLO, WITH_HYSTERESIS = "paper-at-assignment", "paper-smallest-slo", "paper-with-hysteresis"
LLUMNIX_WITH_HYSTERESIS, AT_RANDOM = "llumnix-with-hysteresis", "paper-at-random"
MIN_GAIN = 0.1  # share of the cost on its own instance, below which a request stays


@dataclass(slots=True, kw_only=True)
class AtAssignment(PaperPolicy):
    """Algorithm 3 by its text: a request's threshold changes only when it is assigned or migrated."""

    _ticket: Int64 = field(
        init=False, default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # the request that a row had
    _instance: Int64 = field(init=False, default_factory=lambda: np.zeros(0, dtype=np.int64))
    _threshold: Float64 = field(init=False, default_factory=lambda: np.zeros(0))

    def choose(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> ThresholdChoice:
        choice = super(AtAssignment, self).choose(rows, table, fleet, now_s)
        self._grow(table.capacity)
        stays = (self._ticket[rows] == table.ticket[rows]) & (self._instance[rows] == table.instance[rows])
        thresholds = np.where(stays, self._threshold[rows], choice.thresholds)
        self._ticket[rows], self._instance[rows] = table.ticket[rows], table.instance[rows]
        self._threshold[rows] = thresholds
        return replace(choice, thresholds=thresholds)

    def _grow(self, capacity: int) -> None:
        added = capacity - len(self._ticket)
        if added > 0:
            self._ticket = np.append(self._ticket, np.zeros(added, dtype=np.int64))
            self._instance = np.append(self._instance, np.full(added, NOWHERE))
            self._threshold = np.append(self._threshold, np.zeros(added))


@dataclass(slots=True, kw_only=True)
class SmallestSlo(PaperPolicy):
    """Load control over the smallest SLO of the active requests, not their mean."""

    def window_s(self, slo_s: Float64) -> float:
        return float(slo_s.min())


@dataclass(slots=True, kw_only=True)
class WithHysteresis(PaperPolicy):
    """A request moves only to an instance whose step takes at least a tenth less time."""

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> tuple[Int64, Int64]:  # noqa: ARG002
        return place_first_come(rows, table, fleet, step_latency, MIN_GAIN)


@dataclass(slots=True, kw_only=True)
class AtRandom(PaperPolicy):
    """A request starts on any instance with room, whatever its load; it moves as in the paper."""

    _random: np.random.Generator = field(init=False, default_factory=lambda: np.random.default_rng(0))

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> tuple[Int64, Int64]:  # noqa: ARG002
        waiting = rows[table.instance[rows] == NOWHERE]
        if len(waiting):
            return place_first_come(waiting, table, fleet, self._any_instance)
        return place_first_come(rows, table, fleet, step_latency)

    def _any_instance(self, _fleet: Fleet, tokens: Int64) -> Float64:
        return self._random.random(len(tokens))


@dataclass(frozen=True, slots=True)
class LlumnixWithHysteresis(LlumnixPolicy):
    """A request moves only to an instance with at least a tenth fewer tokens."""

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> tuple[Int64, Int64]:  # noqa: ARG002
        return place_first_come(rows, table, fleet, token_load, MIN_GAIN)


VARIANTS: dict[str, type[PaperPolicy]] = {
    AT_ASSIGNMENT: AtAssignment,
    SMALLEST_SLO: SmallestSlo,
    WITH_HYSTERESIS: WithHysteresis,
    AT_RANDOM: AtRandom,
}
POLICIES[LLUMNIX_WITH_HYSTERESIS] = PolicyEntry(policy=f"{__name__}:LlumnixWithHysteresis", one_threshold=True)
for name, policy in VARIANTS.items():
    POLICIES[name] = PolicyEntry(
        policy=f"{__name__}:{policy.__name__}", uses_estimates=True, learns_difficulty=False, needs_profile=True
    )
