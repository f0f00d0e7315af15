"""Which instance runs a request's next step: Algorithm 3, and the baselines' least-loaded choice.

Requests are placed one after another; each sees the load of those placed before it.
"""

from collections.abc import Callable
from math import inf

import numpy as np

from services.scheduler.state.fleet import ALL, Fleet
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Bool, Float64, Int32, Int64

MIN_WAITING = 8  # requests without an instance; filtering fewer takes longer than placing them
MIN_DISPLACEMENT_S = 1.0  # a request on an instance counts as due this much earlier: a close call moves nobody
Cost = Callable[[Fleet, Int64], Float64]


def place_first_come(
    rows: Int64, table: RequestTable, fleet: Fleet, cost: Cost, min_gain: float = 0.0
) -> tuple[Int64, Int64]:
    """Place by priority, then arrival: `place_in_order` for the rows that may find room.

    Shapes: rows [n] -> rows [m] in the order of service, and the index of the instance of each, or NOWHERE, [m].
    """
    rows = table.in_order(rows[may_find_room(rows, table, fleet)])
    return rows, place_in_order(rows, table, fleet, cost, min_gain)


def place_in_order(rows: Int64, table: RequestTable, fleet: Fleet, cost: Cost, min_gain: float = 0.0) -> Int64:
    """The open instance of least `cost` with room, for each row in turn; without one, the row stays where it is.

    The tokens that an instance has cached of a request's text do not count. Among instances of equal cost a request
    stays on its own, otherwise the one with the fewest tokens is chosen. It
    leaves its own only for a cost that is lower by more than the share `min_gain`.
    Source: Algorithm 3, FindBestInstance. `cost(fleet, tokens)` is the cost of each instance for a batch of `tokens`,
    which include the request. Shapes: rows [n] -> [n], indices of instances or NOWHERE.
    """
    loads = _Loads(fleet)
    placed = table.instance[rows].astype(np.int64)
    retried = table.suspect[rows]
    max_tokens = inf  # a waiting request of this length or more finds no room until a request leaves its instance
    columns = zip(table.tokens[rows].tolist(), placed.tolist(), retried.tolist(), strict=True)
    for i, (tokens, current, is_retry) in enumerate(columns):
        waits = current == NOWHERE
        if waits and tokens >= max_tokens:
            continue
        loads.add(current, -tokens)
        fits = loads.fits(tokens, is_retry=is_retry)
        if np.count_nonzero(fits):
            batch = _batch_with(int(rows[i]), tokens, loads, table)
            placed[i] = _cheapest(np.where(fits, cost(fleet, batch), np.inf), batch, current, min_gain)
            if not waits and placed[i] != current:
                max_tokens = inf
        elif waits and not (is_retry and loads.some_unresponsive):
            max_tokens = tokens
        loads.add(int(placed[i]), tokens)
    return placed


class _Loads:
    """The load of each instance while requests are placed."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.tokens, self.requests = fleet.tokens.copy(), fleet.requests.copy()
        self._room = np.where(fleet.open, _room(fleet, self.tokens, self.requests), -1.0)
        self.reserved = NOWHERE  # index of an instance that only one request may join
        self._responsive = fleet.open & ~fleet.unresponsive
        self.some_unresponsive = 0 < np.count_nonzero(self._responsive) < np.count_nonzero(fleet.open)

    def add(self, index: int, tokens: int) -> None:
        """Count a request; one of negative length leaves the instance."""
        if index == NOWHERE:
            return
        self.tokens[index] += tokens
        self.requests[index] += 1 if tokens > 0 else -1
        if self.fleet.open[index]:
            count, free = self.requests[index], self.fleet.max_tokens[index] - self.tokens[index]
            self._room[index] = inf if not count else free if count < self.fleet.max_requests[index] else -1.0

    def reserve(self) -> None:
        """Keep the open instance with the most free room for the request that waits for it, a responsive one if any."""
        among = self._responsive if self.some_unresponsive else self.fleet.open
        free = np.where(among, self.fleet.max_tokens - self.tokens, np.iinfo(np.int64).min)
        self.reserved = int(free.argmax())

    def longest_fitting(self) -> float:
        """The tokens of the longest request that finds room; infinity if an open instance is empty."""
        return float(self._room.max(initial=-1.0))

    def fits(self, tokens: int, *, is_retry: bool) -> Bool:
        """Whether each open instance has room for a request. While others are responsive, an unresponsive instance
        receives one request at a time, and no retried one."""
        fits: Bool = self._room >= tokens
        if self.reserved != NOWHERE:
            fits[self.reserved] = False
        if self.some_unresponsive:
            fits &= self._responsive if is_retry else self._responsive | (self.requests == 0)
        return fits


def _batch_with(row: int, tokens: int, loads: _Loads, table: RequestTable) -> Int64:
    """The tokens on each instance together with a request of this length, except those of its text that the instance
    has cached."""
    batch, prefixes = loads.tokens + tokens, loads.fleet.prefixes
    if prefixes.page_tokens:
        batch -= prefixes.cached_tokens(table.page_names(row, prefixes), len(batch))
    return batch


def place_with_displacement(
    rows: Int64, urgent: Bool, table: RequestTable, fleet: Fleet, cost: Cost
) -> tuple[Int64, Int64]:
    """Place the waiting ones of `rows`, which are in the order of service. A request that finds no room displaces later
    ones; an urgent request keeps an instance free until it fits, so that smaller ones do not starve it.

    Of `rows`, those with an instance may be displaced. Source: Algorithm 3 (FindBestInstance) in another order.
    Shapes: rows and urgent [n] -> the rows that move [m], and each one's instance index, or NOWHERE, [m].
    """
    waits = table.instance[rows] == NOWHERE
    if not np.count_nonzero(waits):
        return rows[:0], rows[:0]
    loads, placed = _Loads(fleet), table.instance[rows].astype(np.int64)
    _place_each(waits, rows, urgent, placed, loads, table, cost)
    unplaced = waits & (placed == NOWHERE)
    displaceable = ~waits & np.logical_or.accumulate(unplaced)
    if np.count_nonzero(displaceable):
        for i in displaceable.nonzero()[0].tolist():
            loads.add(int(placed[i]), -int(table.tokens[rows[i]]))
        loads.reserved = NOWHERE
        _place_each(unplaced | displaceable, rows, urgent, placed, loads, table, cost)
    changed = placed != table.instance[rows]
    return rows[changed], placed[changed]


def _place_each(
    which: Bool, rows: Int64, urgent: Bool, placed: Int64, loads: _Loads, table: RequestTable, cost: Cost
) -> None:
    """Write the instances of those of `rows` that `which` selects to `placed`. Shapes: [n] each."""
    tokens = table.tokens[rows]
    fitting = tokens <= loads.longest_fitting()
    first_blocked = (which & ~fitting & urgent).nonzero()[0][:1]
    which = which & (fitting | (placed != NOWHERE))
    which[first_blocked] = True
    max_tokens = inf  # a request of this length or more finds no room
    for i in which.nonzero()[0].tolist():
        current, length, is_retry = int(placed[i]), int(tokens[i]), bool(table.suspect[rows[i]])
        placed[i] = NOWHERE
        if length < max_tokens:
            fits = loads.fits(length, is_retry=is_retry)
            if current != NOWHERE and fits[current]:
                placed[i] = current
            elif np.count_nonzero(fits):
                batch = _batch_with(int(rows[i]), length, loads, table)
                placed[i] = _cheapest(np.where(fits, cost(loads.fleet, batch), np.inf), batch, current)
            elif not (is_retry and loads.some_unresponsive):
                max_tokens = length
        if placed[i] != NOWHERE:
            loads.add(int(placed[i]), length)
        elif urgent[i] and loads.reserved == NOWHERE:
            loads.reserve()


def _room(fleet: Fleet, tokens: Int64 | Float64, requests: Int32 | Int64) -> Float64:
    """The longest request for which each instance has room under this load. An empty instance has room for any
    request, so that one longer than a whole batch runs alone. Shapes: [n], [n] -> [n]."""
    free = np.where(requests < fleet.max_requests, fleet.max_tokens - tokens, -1.0)
    return np.where(requests == 0, np.inf, free)


def may_find_room(rows: Int64, table: RequestTable, fleet: Fleet) -> Bool:
    """Whether `place_in_order` may find an instance for each row: if MIN_WAITING rows or more wait, those do not count
    that would not fit even after all of `rows` left their instances. Shapes: [n] -> [n]."""
    instances = table.instance[rows]
    placed: Bool = instances != NOWHERE
    if len(rows) - np.count_nonzero(placed) < MIN_WAITING:
        return np.ones(len(rows), dtype=np.bool_)
    size = len(fleet.tokens)
    tokens = fleet.tokens - np.bincount(instances[placed], table.tokens[rows[placed]], size)
    requests = fleet.requests - np.bincount(instances[placed], minlength=size)
    fits: Bool = table.tokens[rows] <= _room(fleet, tokens, requests)[fleet.open].max(initial=-1.0)
    return placed | fits


def step_latency(fleet: Fleet, tokens: Int64) -> Float64:
    """Latency in seconds of a recompute step with these batch tokens (Algorithm 3)."""
    return fleet.recompute_latency_s(ALL, tokens)


def token_load(_fleet: Fleet, tokens: Int64) -> Float64:
    """The baselines' cost: tokens placed on the instance."""
    return tokens.astype(np.float64)


def _cheapest(cost: Float64, tokens: Int64, current: int, min_gain: float = 0.0) -> int:
    least = cost[cost.argmin()]
    if current != NOWHERE and cost[current] * (1 - min_gain) <= least:
        return current
    equals = (cost == least).nonzero()[0]
    return int(equals[tokens[equals].argmin()])
