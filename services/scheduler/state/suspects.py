"""Suspects run alone. A suspect is a request whose last step failed with its instance: it may be the cause.

So the cause costs other requests one failed step and no attempt.
"""

import numpy as np

from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_pipeline import IDLE
from shared.arrays import Int64

MAX_ATTEMPTS = 3  # failed attempts of one step, alone or with an invalid result, after which the request fails


def divide_suspects(rows: Int64, table: RequestTable) -> tuple[Int64, Int64]:
    """Of the rows of whole instances: the suspects to run now, the first of each instance that runs no step; and the
    rows of the instances without suspects. Shapes: [n] -> [m], [k]."""
    suspects = table.suspect.nonzero()[0]
    if not len(suspects):
        return rows[:0], rows
    isolated = np.isin(table.instance[rows], table.instance[suspects])
    waiting = table.in_order(rows[table.suspect[rows] & (table.pipeline.state[rows] == IDLE)])
    waiting = waiting[~np.isin(table.instance[waiting], table.instance[table.pipeline.in_flight()])]
    _, first = np.unique(table.instance[waiting], return_index=True)
    return waiting[first], rows[~isolated]
