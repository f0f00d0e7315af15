"""The slack of a cell, by which gateways choose among the cells of a model: the share of it that no request needs."""

import numpy as np

from services.scheduler.algorithms.common_level import steps_at
from services.scheduler.algorithms.work_estimates import booked_shares
from services.scheduler.core import SchedulerCore
from services.scheduler.policies.dilaserve import priced_at


def cell_slack(core: SchedulerCore, waiting: int) -> float:
    """The free share of the SLO window or of the places for requests, whichever is smaller. At 1 the cell is idle; at 0
    and below it is full. `waiting`: the requests outside the core, whose work is unknown; they take places."""
    fleet = core.fleet
    places = int(fleet.max_requests[fleet.open].sum())
    if not places:
        return 0.0
    requests = len(core.table) + waiting
    return min(1.0 - _booked_share(core), 1.0 - requests / places)


def _booked_share(core: SchedulerCore) -> float:
    """The share of the SLO window that the active requests take, each at the same part of the range of thresholds.
    Returns: 0 if none is active."""
    table, candidates = core.table, np.array(core.settings.thresholds)
    rows = table.ticket.nonzero()[0]
    if not len(rows):
        return 0.0
    threshold = priced_at(candidates)
    steps, recompute_steps = (steps_at(left, candidates, threshold) for left in core.estimates.remaining(rows))
    return float(booked_shares(rows, steps - recompute_steps, recompute_steps, table, core.fleet).sum())
