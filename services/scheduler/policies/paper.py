"""The paper's policy: deadline and cluster load decide a request's threshold; the fastest instance runs it."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from services.scheduler.algorithms.paper import choose_thresholds, highest_allowed, request_load, time_left_s
from services.scheduler.algorithms.placement import place_first_come, step_latency
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.policies.policy import AdaptivePolicy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.decision_log import ThresholdChoice
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_estimates import StepEstimates, candidate_of
from shared.arrays import Float64, Int64
from shared.messages.stats import ClusterLoad


@dataclass(slots=True, kw_only=True)
class PaperPolicy(AdaptivePolicy):
    """Algorithms 1 to 5, with a reserve before the deadline (see `choose`)."""

    moves: MigrationPolicy = MigrationPolicy.AT_RECOMPUTE
    margin_steps: float = 0.0

    @classmethod
    def build(cls, settings: SchedulerSettings, estimates: StepEstimates, **options: Any) -> Self:
        return super(PaperPolicy, cls).build(settings, estimates, margin_steps=settings.margin_steps, **options)

    def control(self, table: RequestTable, fleet: Fleet, now_s: float) -> ClusterLoad | None:  # noqa: ARG002
        """Adaptive load control over all requests; writes `level`.

        The window is the mean SLO of the active requests (the paper's extension to SLOs of their own): see `window_s`.
        """
        rows = table.active()
        if not len(rows):
            return None
        if not self.load_control:
            table.level[rows] = self.candidates[-1]
            return None
        tokens = table.recompute_tokens(rows).astype(np.float64)
        block_lengths = table.block_length[rows].astype(np.float64)
        load = request_load(*self.estimates.remaining(rows), tokens, block_lengths)
        if table.pipeline.exact:  # the first step of each further block feeds the one before it, too
            load += ((table.blocks_left[rows] - 1) * block_lengths)[:, None]
        n = len(rows)
        of_recompute = table.output_length[rows] if table.pipeline.exact else block_lengths
        throughput = fleet.throughput(
            tokens.sum() / n,
            block_lengths.sum() / n,
            cache_steps=of_recompute.sum() / n - 1 if table.pipeline.caching else None,
        )
        capacity = throughput * self.window_s(table.slo_s[rows])
        guaranteed = np.zeros(len(rows), dtype=np.bool_)
        if self.guaranteed_priority is not None:
            guaranteed = table.priority[rows] >= self.guaranteed_priority
        lowest = candidate_of(table.min_threshold[rows], self.candidates)
        highest = highest_allowed(load, lowest, capacity, guaranteed)
        table.level[rows] = self.candidates[highest]
        each = np.arange(len(rows))
        return ClusterLoad(
            least_tokens=float(load[each, lowest].sum()),
            committed_tokens=float(load[each, highest].sum()),
            capacity_tokens=capacity,
            throughput_tokens_per_s=throughput,
        )

    def window_s(self, slo_s: Float64) -> float:
        """The SLO window, from the SLOs of the active requests."""
        return float(slo_s.mean())

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> tuple[Int64, Int64]:  # noqa: ARG002
        return place_first_come(rows, table, fleet, step_latency)

    def choose(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> ThresholdChoice:
        """The highest allowed threshold that meets the deadline at the instance's present load.

        Departure from Algorithm 1: `margin_steps` recompute steps at that load are kept in reserve. The highest
        threshold that fits uses the whole SLO. Without a margin, estimates that are right on average therefore miss
        half of the deadlines that could be met.
        """
        instances = table.instance[rows]
        recompute_latency_s = fleet.recompute_latency_s(instances, fleet.tokens[instances])
        cache_latency_s = fleet.cache_latency_s(instances, fleet.requests[instances] * table.block_length[rows])
        left_s = time_left_s(*self.estimates.remaining(rows), recompute_latency_s, cache_latency_s)
        slo_left_s = table.time_left_s(rows, now_s) - self.margin_steps * recompute_latency_s
        floor = table.min_threshold[rows]
        lowest = candidate_of(floor, self.candidates)
        highest = np.maximum(candidate_of(table.level[rows], self.candidates), lowest)
        chosen = choose_thresholds(left_s, slo_left_s, lowest, highest)
        thresholds, allowed = self.candidates[chosen], self.candidates[highest]
        above_all = floor > self.candidates[-1]  # then the floor is the threshold
        if np.count_nonzero(above_all):
            thresholds, allowed = (np.where(above_all, floor, some) for some in (thresholds, allowed))
        return ThresholdChoice(thresholds, allowed, left_s[np.arange(len(rows)), chosen], recompute_latency_s)
