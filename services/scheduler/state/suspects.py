"""Suspects run alone. A suspect is a request whose last step failed with its instance: it may be the cause.

So the cause costs other requests one failed step and no attempt.
"""

import numpy as np

from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Bool, Int64

MAX_ATTEMPTS = 3  # failed attempts of one step, alone or with an invalid result, after which the request fails


def suspect(table: RequestTable, rows: Int64) -> None:
    """One instance failed during the steps of these rows. A step that ran alone is the cause, so its attempt counts."""
    table.suspect[rows] = True
    if len(rows) == 1:
        table.attempts[rows] += 1


def isolated_instances(table: RequestTable, num_instances: int) -> Bool | None:
    """Whether each instance has a suspect, [num_instances + 1]; the last, at NOWHERE, is False. Returns: None if no
    request is a suspect."""
    suspects = table.suspect.nonzero()[0]
    if not len(suspects):
        return None
    isolated = np.zeros(num_instances + 1, dtype=np.bool_)
    isolated[table.instance[suspects]] = True
    isolated[NOWHERE] = False
    return isolated


def next_suspects(rows: Int64, table: RequestTable) -> Int64:
    """Of these idle rows with an instance, the first suspect of each instance that runs no step. [n] -> [m]."""
    busy = set(table.instance[table.pipeline.in_flight()].tolist())
    first: dict[int, int] = {}
    for row in table.in_order(rows[table.suspect[rows]]).tolist():
        index = int(table.instance[row])
        if index not in busy:
            first.setdefault(index, row)
    return np.array(list(first.values()), dtype=np.int64)
