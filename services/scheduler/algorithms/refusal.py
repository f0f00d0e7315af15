"""Which new requests cannot meet their SLO, even if every request is served at the lowest threshold it may use.

The earliest end of a request is the time of its own steps on the best instance, and a delay by the requests ahead of
it, those of its priority and above. Each delays it for at most as many steps as it has left itself, as they share the
iterations. The forecast is optimistic, so that a request that could meet its SLO is served.

Arrays hold n active requests.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np

from services.scheduler.algorithms.work_estimates import cluster_seconds
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.observations import CONFIRMED_AFTER
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Bool, Float64, Int64

OPTIMISTIC_SHARE = 0.5  # of the estimated steps: an easy request needs no more
UNCONFIRMED_FACTOR = 0.25  # on costs that are not confirmed: a profile from a busy machine can be many times too slow
MAX_RETRY_S = 3600.0  # also for a request that does not fit an idle cluster: instances may be added
MAX_ENDED = 256  # completed requests that count in `ComputingShare`
MIN_ENDED = 20  # fewer do not count
MIN_SHARE = 0.25  # least `ComputingShare`, so that the forecast stays optimistic


def refusals(
    new: Int64, rows: Int64, steps: Float64, recompute_steps: Float64, *, by_deadline: bool, computing_share: float,
    table: RequestTable, fleet: Fleet, now_s: float,
) -> Iterator[tuple[int, float]]:  # fmt: skip
    """Those of the rows `new` that cannot meet their SLO, each with the seconds after which to try again.

    `rows` are all active requests, and `steps` those that each has left at its lowest threshold; none is refused while
    no instance is open. `by_deadline`: only requests that are not late yet, and due no later, are ahead of a request.
    `computing_share`: of the time, in which iterations run; in the rest instances wait for messages.
    """
    if not fleet.open.any():
        return
    scale = _cost_scale(fleet)
    work_s = cluster_seconds(rows, steps - recompute_steps, recompute_steps, scale, table, fleet)
    alone_s = _alone_seconds(rows, steps, recompute_steps, table, fleet, scale)
    accepted = ~np.isin(rows, new)  # earlier requests, and new ones that are not refused
    due_s = table.arrival_s[rows] + table.slo_s[rows]
    for i in np.searchsorted(rows, new).tolist():
        ahead = accepted & (table.priority[rows] >= table.priority[rows[i]])
        if by_deadline:
            ahead &= (due_s >= now_s) & (due_s <= due_s[i])
        delay_s = work_s[ahead] @ np.minimum(steps[i] / np.maximum(steps[ahead], 1.0), 1.0)
        late_s = now_s + alone_s[i] + float(delay_s) / computing_share - due_s[i]
        if late_s <= 0:
            accepted[i] = True
            continue
        slo_s = table.slo_s[rows[i]]
        yield int(rows[i]), MAX_RETRY_S if alone_s[i] > slo_s else min(max(late_s, 1.0), MAX_RETRY_S)


def _alone_seconds(
    rows: Int64, steps: Float64, recompute_steps: Float64, table: RequestTable, fleet: Fleet, scale: Float64
) -> Float64:
    """The time of each request's own steps on the best instance, as if it were an easy one. Shapes: [n] each -> [n]."""
    steps = np.maximum(OPTIMISTIC_SHARE * steps, np.minimum(steps, 1.0))
    recompute_steps = np.minimum(recompute_steps, steps)
    best_s = np.full(len(rows), np.inf)
    blocks, whole = table.block_length[rows], table.recompute_tokens(rows)
    for index in fleet.open.nonzero()[0].tolist():
        at = np.full(len(rows), index)
        recompute_s = fleet.recompute_latency_s(at, whole)
        cache_s = fleet.cache_latency_s(at, blocks, whole)
        own_s = (steps - recompute_steps) * cache_s + recompute_steps * recompute_s
        best_s = np.minimum(best_s, own_s * scale[index])
    return best_s


def _cost_scale(fleet: Fleet) -> Float64:
    """The factor on each instance's costs. That of an idle one is at most 1: if all requests were refused, no iteration
    could lower it."""
    confirmed: Bool = fleet.observed >= CONFIRMED_AFTER
    factor: Float64 = np.where(confirmed, 1.0, UNCONFIRMED_FACTOR) * fleet.correction
    return np.where(fleet.requests > 0, factor, np.minimum(factor, 1.0))


class ComputingShare:
    """The share of a request's time at its instance in which iterations with it run.

    The median over the latest completed requests; 1 before MIN_ENDED have completed.
    """

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=MAX_ENDED)

    def record(self, computing_s: float, served_s: float) -> None:
        """Count a completed request: the time of its iterations, and the time since its first step was sent."""
        if computing_s > 0:
            self._shares.append(computing_s / max(served_s, computing_s))

    @property
    def value(self) -> float:
        if len(self._shares) < MIN_ENDED:
            return 1.0
        return max(float(np.median(self._shares)), MIN_SHARE)
