"""DiLaServe's policy: one threshold for all by the booked work, lower where a deadline needs it; it also chooses which
requests step in each iteration."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from services.scheduler.algorithms.batching import MIN_BATCH, of_one_kind, within_pace
from services.scheduler.algorithms.common_level import STEP_FACTOR, STEP_MARGIN, highest_within, level_at, steps_at
from services.scheduler.algorithms.feasibility import least_seconds, patient, plan_slos
from services.scheduler.algorithms.key_shares import FairKeys
from services.scheduler.algorithms.placement import MIN_DISPLACEMENT_S, place_with_displacement, step_latency
from services.scheduler.algorithms.work_estimates import BatchLatency, booked_shares, pace_s
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.policies.policy import LOAD_CONTROL_INTERVAL_S, AdaptivePolicy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.decision_log import ThresholdChoice
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import NOWHERE, RequestTable
from services.scheduler.state.step_estimates import StepEstimates
from services.scheduler.state.step_pipeline import IDLE, SENT
from shared.arrays import Bool, Float64, Int32, Int64
from shared.messages.steps import RECOMPUTE

PRICED_AT = 0.75  # of the range of candidates: the threshold at which work is priced
# Booked share above which the cell is overloaded: batches are not cut for the sake of urgent requests, and short
# requests go first, as more of them can be in time
OVERLOADED = 0.7
MAX_SHORT_FIRST = 2.0  # SLOs by which a long request counts as due later, at most
# The kinds of step run in separate iterations if merging them saves less than this share of a recompute iteration's
# base: recompute steps can gather, and then share one base
MAX_SHARED_LAUNCH = 0.5


def priced_at(candidates: Float64) -> float:
    """The threshold at which work is priced. Shapes: candidates [c], ascending."""
    return float(candidates[0] + PRICED_AT * (candidates[-1] - candidates[0]))


@dataclass(slots=True, kw_only=True)
class DiLaServePolicy(AdaptivePolicy):
    """Writes the columns `level`, `least_steps`, `booked`, `infeasible` and `planned_slo_s` of the table, and `tight`
    of the fleet."""

    # Part of its SLO: placement may reserve an instance for a feasible request with less time left
    urgent_share: ClassVar[float] = 0.6
    late_slos: ClassVar[float] = 4.0  # a late request is served as if it were due this much later, in its SLOs
    moves: MigrationPolicy = MigrationPolicy.FOR_ROOM
    keys: FairKeys = field(default_factory=lambda: FairKeys({}))
    infeasible: str = "common"  # the level of requests whose SLO no threshold meets: that of the others, or "lowest"
    _booked: float = 0.0  # share of the SLO window
    _latency: BatchLatency | None = None  # of the requests at the last run of load control

    @classmethod
    def build(cls, settings: SchedulerSettings, estimates: StepEstimates, **options: Any) -> Self:
        keys = FairKeys(settings.weight_of_key)
        return super(DiLaServePolicy, cls).build(
            settings, estimates, keys=keys, infeasible=settings.infeasible_level, **options
        )

    def control(self, table: RequestTable, fleet: Fleet, now_s: float) -> None:
        """Set the common level by the busy-seconds that the requests have left, each as a share of its SLO."""
        lowest, highest = float(self.candidates[0]), float(self.candidates[-1])
        rows = table.ticket.nonzero()[0]
        overloaded, self._booked = self._overloaded, 0.0
        if len(rows):
            threshold = priced_at(self.candidates)
            steps_left, recompute_left = self.estimates.remaining(rows)
            table.least_steps[rows] = steps_at(steps_left, self.candidates, table.min_threshold[rows])
            steps, recompute_steps = (
                steps_at(left, self.candidates, threshold) for left in (steps_left, recompute_left)
            )
            recompute_share = float(recompute_steps.sum() / steps.sum())
            tokens, block_length = float(table.recompute_tokens(rows).mean()), float(table.block_length[rows].mean())
            self._latency = BatchLatency(fleet, tokens, block_length, recompute_share)
            least_s = least_seconds(rows, self._latency, table, overloaded=overloaded)
            plan_slos(rows, least_s, table, now_s)
            booked = booked_shares(rows, steps - recompute_steps, recompute_steps, table, fleet)
            self._booked = float(booked.sum())
            fleet.tight[:] = self._tight(rows, self._latency, table, fleet, now_s)
        level = level_at(self._booked, lowest, highest) if self.load_control else highest
        table.level[rows] = level
        self.keys.forget()
        if self.load_control and len(table.keys) > 1 and np.isfinite(self._booked):
            self.keys.set_levels(rows, booked, lowest, highest, table)
        if len(rows) and level < highest:
            self._raise_patient(rows, steps_left[:, -1], booked, table, now_s)
        if self.infeasible == "lowest":
            table.level[rows[table.infeasible[rows]]] = lowest
        if self.guaranteed_priority is not None:
            table.level[rows[table.priority[rows] >= self.guaranteed_priority]] = highest

    def _raise_patient(
        self, rows: Int64, most_steps: Float64, booked: Float64, table: RequestTable, now_s: float
    ) -> None:
        """Patient requests wait behind all others, so the load of the moment need not lower them: they have the level
        of the work booked until the first of them is due. Shapes: [n] each."""
        assert self._latency is not None, "there are requests"
        which = rows[patient(rows, most_steps, self._latency, table, now_s)]
        if len(which):
            window_s = table.time_left_s(which, now_s).min()
            share = float(booked @ np.minimum(table.planned_slo_s[rows] / window_s, 1.0))
            level = level_at(share, float(self.candidates[0]), float(self.candidates[-1]))
            table.level[which] = np.maximum(table.level[which], level)

    def place(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> tuple[Int64, Int64]:
        """By priority, then by key share, then by deadline; requests that are late, or infeasible, count as
        due `late_slos` SLOs later. In an overload those that wait count as due later by their work: one SLO for the
        mean work."""
        left_s, slo_s = table.time_left_s(rows, now_s), table.planned_slo_s[rows]
        due_s = np.where((left_s < 0) | table.infeasible[rows], left_s + self.late_slos * slo_s, left_s)
        waits = table.instance[rows] == NOWHERE
        due_s[~waits] -= MIN_DISPLACEMENT_S
        if self._overloaded and waits.any():
            work = table.tokens[rows[waits]] * table.least_steps[rows[waits]]
            due_s[waits] += slo_s[waits] * np.minimum(work / work.mean(), MAX_SHORT_FIRST)
        order = np.lexsort((due_s, self.keys.shares_before(rows, due_s, table), -table.priority[rows]))
        urgent = (left_s < self.urgent_share * slo_s) & ~table.infeasible[rows]
        return place_with_displacement(rows[order], urgent[order], table, fleet, step_latency)

    def select(self, rows: Int64, joined: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> Bool:
        """The most urgent requests, as many as the strictest pace limit allows, and one kind of step where that is
        cheaper."""
        every = np.concatenate([rows, joined]) if len(joined) else rows
        if len(every) == 1:
            return np.ones(1, dtype=np.bool_)[: len(rows)]
        is_joined = np.arange(len(every)) >= len(rows)
        instances, group = _groups(table.instance[every])
        chosen = np.ones(len(every), dtype=np.bool_)
        if self._latency is not None and np.count_nonzero(fleet.tight[instances]):
            latency, limit_s = self._latency, needed_pace_s(every, self._latency, table, now_s)
            chosen = within_pace(group, limit_s, is_joined, lambda of, number: latency.seconds(instances[of], number))
        # With an exact cache only arrivals recompute: too few to gather
        separates = self._separates(instances, fleet) & (not table.pipeline.exact)
        if np.count_nonzero(separates):
            some, some_joined = every[chosen], is_joined[chosen]
            recomputes = self._recomputes(some, some_joined, table)
            chosen[chosen] = of_one_kind(group[chosen], recomputes, some_joined, separates)
        return chosen[: len(rows)]

    def choose(self, rows: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> ThresholdChoice:
        """The common level, or the highest threshold below it at which the request meets its deadline."""
        steps_left, _ = self.estimates.remaining(rows)
        pace = pace_s(rows, table, fleet)
        fitting = self._fitting(steps_left, table.time_left_s(rows, now_s), pace)
        allowed = table.level[rows]
        highest = np.minimum(fitting, allowed)
        thresholds = np.maximum(_rounded_down(highest, self.candidates), table.min_threshold[rows])
        predicted_s = steps_at(steps_left, self.candidates, thresholds) * pace
        return ThresholdChoice(thresholds, np.maximum(allowed, thresholds), predicted_s, pace)

    @property
    def _overloaded(self) -> bool:
        return self._booked > OVERLOADED

    def _fitting(self, steps_left: Float64, left_s: Float64, pace: Float64) -> Float64:
        """The highest threshold at which each request meets its deadline; once late, the middle of the range.

        Shapes: steps_left [n, c], left_s (to the deadline) and pace [n] -> [n].
        """
        fitting = highest_within(steps_left, self.candidates, (left_s / pace - STEP_MARGIN) / STEP_FACTOR)
        fitting[left_s < 0] = (self.candidates[0] + self.candidates[-1]) / 2
        return fitting

    def _separates(self, instances: Int64, fleet: Fleet) -> Bool:
        """Whether each instance runs the two kinds of step in separate iterations, because these are cheaper, [k]."""
        return fleet.shared_launch_s[instances] < MAX_SHARED_LAUNCH * fleet.recompute_base_s[instances]

    def _tight(self, rows: Int64, latency: BatchLatency, table: RequestTable, fleet: Fleet, now_s: float) -> Bool:
        """For each instance: whether a batch of all its requests is too slow for one of them. Shapes: rows [n]."""
        tight = np.zeros(len(fleet.tokens), dtype=np.bool_)
        if self._overloaded:
            return tight
        rows = rows[table.instance[rows] != NOWHERE]
        instances = table.instance[rows]
        needed_s = needed_pace_s(rows, latency, table, now_s + LOAD_CONTROL_INTERVAL_S)
        all_s = latency.seconds(np.arange(len(tight)), fleet.requests)
        tight[instances[needed_s < all_s[instances]]] = True
        return tight

    def _recomputes(self, rows: Int64, joined: Bool, table: RequestTable) -> Bool:
        """Whether the step of each in the batch is a recompute step. Shapes: rows and joined [n] -> [n]."""
        state = table.pipeline.state[rows]
        recomputes: Bool = (state == IDLE) & table.next_recomputes(rows)
        if np.count_nonzero(joined):
            recomputes |= joined & (state == SENT) & (table.pipeline.kind[rows] == RECOMPUTE)
        return recomputes | (not table.pipeline.caching)


def _groups(instances: Int32) -> tuple[Int64, Int64]:
    """The distinct instances, and for each row the index of its instance among them. Shapes: [n] -> [k], [n]."""
    first = instances[:1].astype(np.int64)
    if np.count_nonzero(instances != first) == 0:  # most often the results of one instance arrived
        return first, np.zeros(len(instances), dtype=np.int64)
    different, group = np.unique(instances, return_inverse=True)
    return different.astype(np.int64), group


def needed_pace_s(rows: Int64, latency: BatchLatency, table: RequestTable, now_s: float) -> Float64:
    """The seconds between two steps at which each request meets its deadline at its lowest threshold; infinity, so no
    limit, if no batch is fast enough. Shapes: rows [n] -> [n]."""
    every = np.arange(len(latency.fleet.tokens))
    small_batch_s = latency.seconds(every, np.array(MIN_BATCH + 1))[table.instance[rows]]
    needed_s = (table.time_left_s(rows, now_s) - small_batch_s) / np.maximum(table.least_steps[rows], 1.0)
    needed_s[needed_s < small_batch_s] = np.inf
    return needed_s


def _rounded_down(thresholds: Float64, candidates: Float64) -> Float64:
    """To hundredths or the next candidate, whichever is higher. Shapes: [n], all at least the lowest candidate, [c] ->
    [n]."""
    candidate = candidates[np.maximum(candidates.searchsorted(thresholds, "right") - 1, 0)]
    return np.maximum(np.floor(thresholds * 100 + 1e-6) / 100, candidate)
