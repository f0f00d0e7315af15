"""Requests that miss their deadline even at the lowest confidence threshold, which needs the fewest steps. They are
planned for a later deadline, so that they take neither quality nor time from requests that can be in time. It also
finds patient requests: their deadline is so far that they can wait until the load falls, so the load of the moment does
not lower their threshold.

Arrays hold n requests.
"""

import numpy as np

from services.scheduler.algorithms.common_level import STEP_FACTOR
from services.scheduler.algorithms.work_estimates import BatchLatency
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Bool, Float64, Int64

# A request that runs may be faster than estimated: it is infeasible only with less time left than this share of its
# estimated time alone
ALONE_SHARE = 0.7
# In an overload, less than this share of its estimated time at the pace of its instance, in seconds per step
PACE_SHARE = 0.8
# In an overload one that waits counts as needing the larger of STEP_FACTOR times its estimated time, and of
# WAITING_FACTOR times that, but at most MAX_SLO_SHARE of its SLO. Without this reserve requests would start with no
# time to spare, and all that turn out harder than estimated would miss.
WAITING_FACTOR, MAX_SLO_SHARE = 2.0, 0.6
# An infeasible request becomes feasible again only with this many times its least time left, so that small changes of
# the estimate have no effect
FEASIBLE_AGAIN = 1.25
# The planned deadline of an infeasible request is the median SLO of the feasible ones from now, and at least this many
# times its least time. It is set once.
PLANNED_TIMES = 8.0
PATIENT_TIMES = 50.0  # a patient request has this many times the time left that it needs at the highest threshold


def least_seconds(rows: Int64, latency: BatchLatency, table: RequestTable, *, overloaded: bool) -> Float64:
    """The least time that each request needs at its lowest threshold. One that runs: a share of its time alone on the
    fastest instance, in an overload at the pace of its own. One that waits for room, as the instances are full: by
    their mean pace, with a reserve. Shapes: [n] -> [n]."""
    fleet = latency.fleet
    if not fleet.open.any():
        return np.zeros(len(rows))
    steps, at = table.least_steps[rows], table.instance[rows]
    waits = at == NOWHERE
    step_s = np.full(len(rows), ALONE_SHARE * alone_step_s(latency))
    if overloaded:
        step_s[~waits] = np.maximum(step_s[~waits], PACE_SHARE * fleet.pace_s[at[~waits]])
    least_s: Float64 = steps * step_s
    if waits.any():
        needed_s = steps[waits] * mean_pace_s(latency)
        reserved_s = STEP_FACTOR * needed_s
        if overloaded:
            with_reserve_s = np.minimum(WAITING_FACTOR * needed_s, MAX_SLO_SHARE * table.slo_s[rows[waits]])
            reserved_s = np.maximum(reserved_s, with_reserve_s)
        least_s[waits] = np.maximum(reserved_s, least_s[waits])
    return least_s


def alone_step_s(latency: BatchLatency) -> float:
    """Seconds of a step of a request that is alone on the fastest instance."""
    instances = latency.fleet.open.nonzero()[0]
    return float(latency.seconds(instances, np.ones(len(instances), np.int64)).min())


def mean_pace_s(latency: BatchLatency) -> float:
    """Seconds per step of a request, in the mean of the open instances: as observed, or where nothing is observed the
    estimated latency of a batch of the requests on the instance."""
    fleet = latency.fleet
    instances = fleet.open.nonzero()[0]
    observed_s, present_s = fleet.pace_s[instances], latency.seconds(instances, fleet.requests[instances])
    return float(np.where(observed_s > 0, observed_s, present_s).mean())


def plan_slos(rows: Int64, least_s: Float64, table: RequestTable, now_s: float) -> None:
    """Write the columns `infeasible` and `planned_slo_s`. Shapes: rows and `least_s`, of `least_seconds`, [n]."""
    age_s = now_s - table.arrival_s[rows]
    was_infeasible = table.infeasible[rows]
    is_infeasible = table.slo_s[rows] - age_s < np.where(was_infeasible, FEASIBLE_AGAIN, 1.0) * least_s
    table.infeasible[rows] = is_infeasible
    planned_s = table.slo_s[rows]
    if is_infeasible.any():
        usual_s = 0.0 if is_infeasible.all() else float(np.median(planned_s[~is_infeasible]))
        new_s = age_s + np.maximum(PLANNED_TIMES * least_s, usual_s)
        planned_s = np.where(is_infeasible, np.where(was_infeasible, table.planned_slo_s[rows], new_s), planned_s)
    table.planned_slo_s[rows] = planned_s


def patient(rows: Int64, steps: Float64, latency: BatchLatency, table: RequestTable, now_s: float) -> Bool:
    """Which requests are patient. Shapes: rows and `steps`, left at the highest threshold, [n] -> [n]."""
    if not latency.fleet.open.any():
        return np.zeros(len(rows), dtype=np.bool_)
    step_s = max(mean_pace_s(latency), alone_step_s(latency))
    return table.time_left_s(rows, now_s) > PATIENT_TIMES * step_s * steps
