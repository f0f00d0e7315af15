"""The slowest pace (seconds between two steps) that each request allows, for choosing a batch that is fast enough."""

from collections.abc import Callable

import numpy as np

from services.scheduler.algorithms.batching import MIN_BATCH
from services.scheduler.algorithms.common_level import STEP_FACTOR, STEP_MARGIN, steps_at
from services.scheduler.algorithms.work_estimates import BatchLatency
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float64, Int64

KEPT_PACE = 0.6  # of the pace at which a request keeps its level, because it also sits out some iterations
KEPT_RANGE = 0.05  # of the range of candidates below the highest: levels in it are kept
NO_LIMIT_S = 1e6  # a pace that no iteration exceeds


def needed_pace_s(rows: Int64, latency: BatchLatency, table: RequestTable, now_s: float) -> Float64:
    """The pace at which each request meets its deadline at its lowest threshold; infinity, so no limit, if no
    batch is fast enough.

    Shapes: rows [n] -> [n].
    """
    small_batch_s = latency.seconds(table.instance[rows], np.array(MIN_BATCH + 1))
    needed_s = (table.time_left_s(rows, now_s) - small_batch_s) / np.maximum(table.least_steps[rows], 1.0)
    needed_s[needed_s < small_batch_s] = np.inf
    return needed_s


def kept_pace_s(
    rows: Int64,
    remaining: Callable[[Int64], tuple[Float64, Float64]],
    candidates: Float64,
    latency: BatchLatency,
    table: RequestTable,
    now_s: float,
) -> Float64:
    """The pace at which each request of the highest level keeps it, so that keys above their share do not slow it down;
    for others a value without effect, in the order of their deadlines.

    Shapes: rows [n] -> [n]; `remaining` is that of `StepEstimates`; candidates [c].
    """
    left_s = table.time_left_s(rows, now_s)
    pace_s = 2 * NO_LIMIT_S + left_s
    kept_from = candidates[-1] - KEPT_RANGE * (candidates[-1] - candidates[0])
    above = (table.level[rows] >= kept_from).nonzero()[0]
    if len(above):
        kept = rows[above]
        steps = steps_at(remaining(kept)[0], candidates, table.level[kept])
        kept_s = left_s[above] / (STEP_FACTOR * steps + STEP_MARGIN)
        possible = kept_s >= latency.seconds(table.instance[kept], np.array(MIN_BATCH))
        pace_s[above] = np.where(possible, KEPT_PACE * kept_s, NO_LIMIT_S)  # the others come after them
    return pace_s
