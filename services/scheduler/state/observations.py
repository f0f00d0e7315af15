"""Finished iterations show the pace of requests on their instance, and how far its latency profile is off."""

import numpy as np

from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Float64, Int64
from shared.messages.steps import RECOMPUTE

PACE_WEIGHT = 0.03  # of an iteration in the moving average of the pace


def observe_iterations(table: RequestTable, fleet: Fleet, rows: Int64, latency_s: Float64, now_s: float) -> None:
    """Record the finished steps of `rows`, before the pipeline completes them. Units: latency_s [n], of the iteration
    that ran each step; 0: not measured."""
    if not len(rows):
        return
    pipeline, instances = table.pipeline, table.instance[rows]
    fleet.changed[instances] = True
    np.maximum.at(fleet.done_batch, instances, pipeline.batch[rows])
    size = len(fleet.tokens)
    steps = np.bincount(instances, minlength=size)
    _observe_pace(table, fleet, rows, now_s)
    recomputes = pipeline.kind[rows] == RECOMPUTE
    tokens = table.tokens[rows]
    observed_s = np.bincount(instances, latency_s, size)
    measured = (observed_s > 0).nonzero()[0]
    recompute_tokens, cache_keys, cache_tokens = (
        np.bincount(instances, np.where(recomputes == of_recomputes, amounts, 0), size)[measured]
        for amounts, of_recomputes in ((tokens, True), (tokens, False), (table.block_length[rows], False))
    )
    predicted_s = fleet.iteration_seconds(
        measured,
        cache_tokens=cache_tokens,
        recompute_tokens=recompute_tokens,
        cache_keys=cache_keys,
        recompute_keys=recompute_tokens,
    )
    fleet.observe(measured, observed_s[measured] / steps[measured], predicted_s)


def _observe_pace(table: RequestTable, fleet: Fleet, rows: Int64, now_s: float) -> None:
    last_s = table.last_result_s[rows]
    again = (last_s > 0) & (table.state_instance[rows] == table.instance[rows])
    instances, gaps_s = table.instance[rows[again]], now_s - last_s[again]
    table.last_result_s[rows] = now_s
    size = len(fleet.tokens)
    steps = np.bincount(instances, minlength=size)
    seen = steps.nonzero()[0]
    mean_s = np.bincount(instances, gaps_s, size)[seen] / steps[seen]
    known_s = fleet.pace_s[seen]
    fleet.pace_s[seen] = np.where(known_s > 0, known_s + PACE_WEIGHT * (mean_s - known_s), mean_s)
