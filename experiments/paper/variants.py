"""Other readings of the paper's algorithms, as policies; importing the module registers them."""

from dataclasses import dataclass, field

import numpy as np

from services.scheduler.algorithms.placement import place_first_come, step_latency, token_load
from services.scheduler.policies.fixed import LlumnixPolicy
from services.scheduler.policies.paper import PaperPolicy
from services.scheduler.registry import POLICIES, PolicyEntry
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Float64, Int64

WITH_HYSTERESIS, AT_RANDOM = "paper-with-hysteresis", "paper-at-random"
LLUMNIX_WITH_HYSTERESIS = "llumnix-with-hysteresis"
MIN_GAIN = 0.1  # share of the cost on its own instance, below which a request stays


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


VARIANTS: dict[str, type[PaperPolicy]] = {WITH_HYSTERESIS: WithHysteresis, AT_RANDOM: AtRandom}
POLICIES[LLUMNIX_WITH_HYSTERESIS] = PolicyEntry(policy=f"{__name__}:LlumnixWithHysteresis", one_threshold=True)
for name, policy in VARIANTS.items():
    POLICIES[name] = PolicyEntry(
        policy=f"{__name__}:{policy.__name__}", uses_estimates=True, learns_difficulty=False, needs_profile=True
    )
