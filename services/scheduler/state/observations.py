"""Finished iterations show the pace of requests on their instance, and how far its latency profile is off."""

import numpy as np

from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float64, Int32, Int64
from shared.messages.steps import RECOMPUTE

PACE_WEIGHT = 0.03  # of one observation in the moving average of the pace
CONFIRMED_AFTER = 8  # measured iterations of an instance; until then all are measured, and its costs may be far off
MEASURE_EVERY = 4  # later iterations; the others do not correct the costs, as a profile's error changes slowly


def observe_iterations(
    table: RequestTable, fleet: Fleet, rows: Int64, latency_s: Float64, cached: Int32, now_s: float
) -> None:
    """Record the finished steps of `rows`, before the pipeline completes them.
    Units: latency_s [n], of the iteration that ran each step, 0: not measured; cached [n], tokens that a recompute step
    did not feed."""
    instances = table.instance[rows]
    seen = np.bincount(instances).nonzero()[0]
    fleet.changed[seen] = True
    np.maximum.at(fleet.done_batch, instances, table.pipeline.batch[rows])
    _observe_pace(table, fleet, rows, instances, now_s)
    measured = (fleet.done_batch % MEASURE_EVERY == 0) | (fleet.observed < CONFIRMED_AFTER)
    kept = (measured[instances] & (latency_s > 0)).nonzero()[0]  # all steps of an iteration, or none
    if len(kept):
        _observe_costs(table, fleet, rows[kept], latency_s[kept], cached[kept])


def _observe_pace(table: RequestTable, fleet: Fleet, rows: Int64, instances: Int32, now_s: float) -> None:
    last_s = table.last_result_s[rows]
    table.last_result_s[rows] = now_s
    again = (last_s > 0) & (table.state_instance[rows] == instances)
    steps = np.bincount(instances, again)
    seen = steps.nonzero()[0]
    mean_s = np.bincount(instances, (now_s - last_s) * again)[seen] / steps[seen]
    known_s = fleet.pace_s[seen]
    fleet.pace_s[seen] = np.where(known_s > 0, known_s + PACE_WEIGHT * (mean_s - known_s), mean_s)


def _observe_costs(table: RequestTable, fleet: Fleet, rows: Int64, latency_s: Float64, cached: Int32) -> None:
    instances = table.instance[rows]
    steps = np.bincount(instances)
    seen = steps.nonzero()[0]
    recomputes = table.pipeline.kind[rows] == RECOMPUTE
    whole = table.recompute_tokens(rows)
    predicted_s = fleet.iteration_seconds(
        seen,
        cache_tokens=np.bincount(instances, table.cache_tokens(rows) * ~recomputes)[seen],
        recompute_tokens=np.bincount(instances, (whole - cached) * recomputes)[seen],
        cache_keys=np.bincount(instances, whole * ~recomputes)[seen],
    )
    fleet.observe(seen, np.bincount(instances, latency_s)[seen] / steps[seen], predicted_s)
