"""Which instance runs a request's next step: Algorithm 3, and the baselines' least-loaded choice.

Requests are placed one after another, each seeing the load of those before it.
"""

from collections.abc import Callable
from math import inf

import numpy as np

from services.scheduler.state.fleet import ALL, Fleet
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Bool, Float64, Int64

FEW = 8  # requests waiting for room: so many are asked for sooner than it is seen that they need not be
Cost = Callable[[Fleet, Int64], Float64]


def place_in_order(rows: Int64, table: RequestTable, fleet: Fleet, cost: Cost) -> Int64:
    """The open slot of least `cost` that has room, for each row in turn; where none has, the row stays as it is.

    Among equals a request stays where it is, else the slot with the fewest tokens is taken.
    Source: Algorithm 3, FindBestInstance. `cost(fleet, tokens)` is [slots] for batches of `tokens` [slots], the
    request included. An empty instance takes any request, so that one longer than a whole batch is served alone.
    Where others are open, a silent instance gets one request at a time, and none that another has left unanswered.
    Shapes: rows [n] -> [n], slots or NOWHERE.
    """
    tokens, requests = fleet.tokens.copy(), fleet.requests.copy()
    answer = fleet.open & ~fleet.silent
    some_silent = 0 < np.count_nonzero(answer) < np.count_nonzero(fleet.open)
    slots = table.instance[rows].astype(np.int64)
    unfit = inf  # tokens: so many found no room, nor will more while nothing leaves its slot
    for i, (need, now) in enumerate(zip(table.tokens[rows].tolist(), slots.tolist(), strict=True)):
        if now == NOWHERE and need >= unfit:
            continue
        if now != NOWHERE:
            tokens[now] -= need
            requests[now] -= 1
        batch = tokens + need
        fits = fleet.open & ((requests == 0) | ((batch <= fleet.max_tokens) & (requests < fleet.max_requests)))
        tried = some_silent and table.attempts[rows[i]] > 0
        if some_silent:
            fits &= answer | ((requests == 0) & (not tried))
        if np.count_nonzero(fits):
            slots[i] = _cheapest(np.where(fits, cost(fleet, batch), np.inf), tokens, now)
            unfit = unfit if slots[i] == now or now == NOWHERE else inf
        elif now == NOWHERE and not tried:
            unfit = need
        if slots[i] != NOWHERE:
            tokens[slots[i]] += need
            requests[slots[i]] += 1
    return slots


def may_find_room(rows: Int64, table: RequestTable, fleet: Fleet) -> Bool:
    """Which rows `place_in_order` may find a slot for; where many wait, those are told apart for which none has room
    even after all of `rows` have left theirs. Shapes: [n] -> [n]."""
    slots = table.instance[rows]
    placed: Bool = slots != NOWHERE
    if len(rows) - np.count_nonzero(placed) < FEW:
        return np.ones(len(rows), dtype=np.bool_)
    size = len(fleet.tokens)
    tokens = fleet.tokens - np.bincount(slots[placed], table.tokens[rows[placed]], size)
    requests = fleet.requests - np.bincount(slots[placed], minlength=size)
    room = np.where(requests == 0, np.inf, np.where(requests < fleet.max_requests, fleet.max_tokens - tokens, -1.0))
    fits: Bool = table.tokens[rows] <= room[fleet.open].max(initial=-1.0)
    return placed | fits


def step_latency(fleet: Fleet, tokens: Int64) -> Float64:
    """Seconds of a recompute step at these batch tokens (Algorithm 3)."""
    return fleet.recompute_latency_s(ALL, tokens)


def token_load(_fleet: Fleet, tokens: Int64) -> Float64:
    """The baselines' measure: tokens placed on the instance."""
    return tokens.astype(np.float64)


def _cheapest(cost: Float64, tokens: Int64, now: int) -> int:
    least = cost[cost.argmin()]
    if now != NOWHERE and cost[now] == least:
        return now
    equals = (cost == least).nonzero()[0]
    return int(equals[tokens[equals].argmin()])
