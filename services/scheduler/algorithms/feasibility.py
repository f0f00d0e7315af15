"""Deadlines that no threshold meets. A request with such a deadline must not take quality or time from those that can
meet theirs, so it is planned by a later deadline.

Arrays hold n requests.
"""

import numpy as np

from services.scheduler.algorithms.common_level import STEP_FACTOR
from services.scheduler.algorithms.work_estimates import BatchLatency
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Float64, Int64

CERTAIN = 0.7  # of the time alone: estimates are not exact, so only less time left than this is surely too little
FEASIBLE_AGAIN = 1.25  # times the least time left: so a request does not change to and fro
# An infeasible request is planned to take the mean SLO of the feasible ones from then on, at least this many times its
# least time
PLANNED_TIMES = 8.0


def least_seconds(rows: Int64, latency: BatchLatency, table: RequestTable, fleet: Fleet) -> Float64:
    """The least time that each request needs, at its lowest threshold: alone on the fastest instance if it runs; at the
    usual pace if it waits for room, as then the instances are full. Shapes: [n] -> [n]."""
    instances = fleet.open.nonzero()[0]
    if not len(instances):
        return np.zeros(len(rows))
    alone_s = float(latency.seconds(instances, np.ones(len(instances), np.int64)).min())
    pace = np.full(len(rows), CERTAIN * alone_s)
    waits = table.instance[rows] == NOWHERE
    if waits.any():
        observed_s, present_s = fleet.pace_s[instances], latency.seconds(instances, fleet.requests[instances])
        usual_s = float(np.where(observed_s > 0, observed_s, present_s).mean())
        pace[waits] = max(STEP_FACTOR * usual_s, CERTAIN * alone_s)
    least_s: Float64 = table.least_steps[rows] * pace
    return least_s


def plan_slos(rows: Int64, least_s: Float64, table: RequestTable, now_s: float) -> None:
    """Write the columns `infeasible` and `planned_slo_s`. Shapes: rows and `least_s`, of `least_seconds`, [n]."""
    age_s = now_s - table.arrival_s[rows]
    was = table.infeasible[rows]
    misses = table.slo_s[rows] - age_s < np.where(was, FEASIBLE_AGAIN, 1.0) * least_s
    usual_s = float(table.slo_s[rows[~misses]].mean()) if not misses.all() else 0.0
    planned_s = np.where(was, table.planned_slo_s[rows], age_s + np.maximum(PLANNED_TIMES * least_s, usual_s))
    table.planned_slo_s[rows] = np.where(misses, planned_s, table.slo_s[rows])
    table.infeasible[rows] = misses
