"""Requests that miss their deadline even at the lowest confidence threshold, which needs the fewest steps. They are
planned for a later deadline, so that they take neither quality nor time from requests that can be in time.

Arrays hold n requests.
"""

import numpy as np

from services.scheduler.algorithms.common_level import STEP_FACTOR
from services.scheduler.algorithms.work_estimates import BatchLatency
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Float64, Int64

# A request that runs may be faster than estimated: it is infeasible only with less time left than this share of its
# estimated time alone
ALONE_SHARE = 0.7
# An infeasible request becomes feasible again only with this many times its least time left, so that small changes of
# the estimate have no effect
FEASIBLE_AGAIN = 1.25
# The planned deadline of an infeasible request is the median SLO of the feasible ones from now, and at least this many
# times its least time. It is set once.
PLANNED_TIMES = 8.0


def least_seconds(rows: Int64, latency: BatchLatency, table: RequestTable, fleet: Fleet) -> Float64:
    """The least time that each request needs at its lowest threshold. One that runs: ALONE_SHARE of its time alone on
    the fastest instance. One that waits for room, as the instances are full: STEP_FACTOR times its steps at their mean
    pace. Shapes: [n] -> [n]."""
    instances = fleet.open.nonzero()[0]
    if not len(instances):
        return np.zeros(len(rows))
    alone_s = float(latency.seconds(instances, np.ones(len(instances), np.int64)).min())
    step_s = np.full(len(rows), ALONE_SHARE * alone_s)
    waits = table.instance[rows] == NOWHERE
    if waits.any():
        observed_s, present_s = fleet.pace_s[instances], latency.seconds(instances, fleet.requests[instances])
        mean_step_s = float(np.where(observed_s > 0, observed_s, present_s).mean())
        step_s[waits] = max(STEP_FACTOR * mean_step_s, ALONE_SHARE * alone_s)
    least_s: Float64 = table.least_steps[rows] * step_s
    return least_s


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
