"""Placement by deadline: its order, whom a request displaces, and room for large requests."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.algorithms.placement import (
    MIN_DISPLACEMENT_S,
    place_first_come,
    place_in_order,
    place_with_displacement,
    token_load,
)
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import NOWHERE, RequestTable
from shared.arrays import Float64, Int64
from shared.messages.instances import InstanceState
from tests.builders import arrival
from tests.support.scripted_cell import make_cell, registered

OUTPUT_TOKENS = 64  # of each request


class Cluster:
    """A table and a fleet; `place` moves the requests."""

    def __init__(self, *limits: int, requests: int = 64) -> None:
        """`limits`: batch tokens of each instance."""
        self.table, self.fleet = RequestTable(candidates=1), Fleet()
        self.ranks: dict[int, float] = {}  # deadlines by row
        for i, tokens in enumerate(limits):
            update = registered(f"i-{i}", max_batch_tokens=tokens, max_batch_requests=requests)
            self.fleet.update(update.instance, 0.0)
        self.count = 0

    def add(self, tokens: int, rank_s: float, index: int = NOWHERE) -> int:
        """A request of this many tokens; on an instance if `index` is one. Returns: its row."""
        self.count += 1
        row = self.table.add(arrival(f"r{self.count}", prompt_tokens=tokens - OUTPUT_TOKENS))
        self.table.arrival_s[row] += self.count
        self.ranks[row] = rank_s
        self._put(row, index)
        return row

    def end(self, row: int) -> None:
        self._put(row, NOWHERE)
        self.table.remove(row)
        del self.ranks[row]

    def place(self, *, urgent: Sequence[int] = (), first_come: bool = False) -> None:
        rows = np.array(sorted(self.ranks), dtype=np.int64)
        if first_come:
            waiting = rows[self.table.instance[rows] == NOWHERE]
            rows, placed = place_first_come(waiting, self.table, self.fleet, token_load)
        else:
            due_s = np.array([float(self.ranks[row]) for row in rows.tolist()])
            due_s[self.table.instance[rows] != NOWHERE] -= MIN_DISPLACEMENT_S
            rows = rows[due_s.argsort(kind="stable")]
            is_urgent = np.isin(rows, urgent)
            rows, placed = place_with_displacement(rows, is_urgent, self.table, self.fleet, token_load)
        assert len(set(rows.tolist())) == len(rows)
        for row, index in zip(rows.tolist(), placed.tolist(), strict=True):
            self._put(row, index)
        self._check()

    def where(self, row: int) -> int:
        return int(self.table.instance[row])

    def _put(self, row: int, index: int) -> None:
        tokens, before = int(self.table.tokens[row]), self.where(row)
        if before != NOWHERE:
            self.fleet.add_load(before, -tokens, requests=-1)
        if index != NOWHERE:
            self.fleet.add_load(index, tokens, requests=1)
        self.table.instance[row] = index

    def _check(self) -> None:
        """No instance exceeds its limits, except with one request."""
        fleet = self.fleet
        assert ((fleet.tokens <= fleet.max_tokens) | (fleet.requests <= 1)).all()
        assert (fleet.requests <= fleet.max_requests).all()


@given(ranks=st.lists(st.integers(-50, 50), min_size=1, max_size=20, unique=True), room=st.integers(1, 8))
def test_the_requests_with_the_earliest_deadlines_are_placed(ranks: list[int], room: int) -> None:
    cluster = Cluster(100 * room)
    rows = [cluster.add(100, rank) for rank in ranks]
    cluster.place()
    placed = {rank for row, rank in zip(rows, ranks, strict=True) if cluster.where(row) == 0}
    assert placed == set(sorted(ranks)[:room])


@pytest.mark.parametrize(
    ("later_s", "displaces"), [(MIN_DISPLACEMENT_S - 0.1, False), (MIN_DISPLACEMENT_S + 0.1, True)]
)
def test_a_request_displaces_one_whose_deadline_is_clearly_later(later_s: float, *, displaces: bool) -> None:
    cluster = Cluster(100)
    placed = cluster.add(100, 5.0 + later_s, index=0)
    waiting = cluster.add(100, 5.0)
    cluster.place()
    assert (cluster.where(placed), cluster.where(waiting)) == ((NOWHERE, 0) if displaces else (0, NOWHERE))
    before = cluster.where(placed), cluster.where(waiting)
    cluster.place()
    assert (cluster.where(placed), cluster.where(waiting)) == before


def test_only_as_many_requests_are_displaced_as_are_in_the_way() -> None:
    cluster = Cluster(400)
    placed = [cluster.add(100, rank, index=0) for rank in (10.0, 40.0, 30.0, 20.0)]
    cluster.add(200, 5.0)
    cluster.place()
    assert [cluster.where(row) for row in placed] == [0, NOWHERE, NOWHERE, 0]


def test_requests_with_room_elsewhere_displace_none() -> None:
    cluster = Cluster(100, 100)
    placed = cluster.add(100, 50.0, index=0)
    waiting = cluster.add(100, 5.0)
    cluster.place()
    assert (cluster.where(placed), cluster.where(waiting)) == (0, 1)


def turns_until_placed(*, urgent: bool, first_come: bool = False) -> int | None:
    """A request of 900 tokens, and a stream of small ones, which keep an instance of 1,000 tokens nearly full. In each
    turn one small request ends and two arrive. Returns: the turns until the large one is placed; None: never."""
    cluster = Cluster(1000)
    small = [cluster.add(250, rank_s=100.0 + i, index=0) for i in range(3)]
    large = cluster.add(900, rank_s=50.0)
    for turn in range(50):
        small += [cluster.add(250, rank_s=200.0 + 2 * turn + i) for i in range(2)]
        for row in small:  # within their blocks they cannot be displaced, so that they end where they are
            cluster.ranks[row] = min(cluster.ranks[row], 40.0) if cluster.where(row) == 0 else cluster.ranks[row]
        cluster.place(urgent=[large] if urgent else [], first_come=first_come)
        if cluster.where(large) == 0:
            return turn
        ended = next(row for row in small if cluster.where(row) == 0)
        cluster.end(ended)
        small.remove(ended)
    return None


def test_an_urgent_large_request_is_placed_once_the_requests_before_it_have_left() -> None:
    """In the order of arrival, or without an instance kept free, small requests take the room each time."""
    assert turns_until_placed(urgent=True) == 3
    assert turns_until_placed(urgent=False) is None
    assert turns_until_placed(urgent=True, first_come=True) is None


def test_other_instances_stay_open_while_one_is_kept_free() -> None:
    cluster = Cluster(1000, 1000)
    for index in (0, 0, 1, 1, 1):
        cluster.add(250, rank_s=10.0, index=index)
    large, small = cluster.add(900, rank_s=20.0), cluster.add(250, rank_s=30.0)
    cluster.place(urgent=[large])
    assert (cluster.where(large), cluster.where(small)) == (NOWHERE, 1)


def test_a_request_longer_than_a_batch_runs_alone_on_an_empty_instance() -> None:
    cluster = Cluster(300)
    large = cluster.add(900, rank_s=10.0)
    cluster.place(urgent=[large])
    assert cluster.where(large) == 0


@given(
    limits=st.lists(st.integers(100, 600), max_size=3),
    requests=st.lists(st.tuples(st.integers(65, 500), st.floats(-20, 20), st.booleans(), st.booleans()), max_size=20),
    closed=st.integers(0, 3),
)
def test_limits_hold_and_a_closed_instance_stays_empty(
    limits: list[int], requests: list[tuple[int, float, bool, bool]], closed: int
) -> None:
    """`requests`: tokens, deadline, whether urgent, whether it comes in a second wave."""
    cluster = Cluster(*limits, requests=4)
    if closed < len(limits):
        cluster.fleet.update(registered(f"i-{closed}", state=InstanceState.DRAINING).instance, 0.0)
    urgent = []
    for second_wave in (False, True):
        for tokens, rank_s, is_urgent, is_second in requests:
            if is_second is second_wave:
                row = cluster.add(tokens, rank_s)
                urgent += [row] if is_urgent else []
        cluster.place(urgent=urgent)
    if closed < len(limits):
        assert cluster.fleet.requests[closed] == 0
    for row in list(cluster.ranks):
        cluster.end(row)
    assert not cluster.fleet.tokens.any()


@pytest.mark.parametrize("late", [False, True])
def test_priority_goes_before_the_deadline(*, late: bool) -> None:
    cell = make_cell({}, policy="dilaserve")
    cell.now_s += 50.0 if late else 0.0
    high, low = arrival("high", slo_s=30.0, priority=1), arrival("low", slo_s=5.0)
    cell.send(registered("a-1", max_batch_requests=1), low, high)
    table = cell.core.table
    assert (table.instance[table.row_of["high"]], table.instance[table.row_of["low"]]) == (0, NOWHERE)


def test_a_request_of_higher_priority_displaces_one_at_the_start_of_a_block() -> None:
    cell = make_cell({"a-1": 1}, policy="dilaserve", caching=True, per_step=32)
    cell.send(registered("a-1", max_batch_requests=1))
    commands = cell.send(arrival("low", slo_s=5.0))
    cell.send(arrival("high", slo_s=100.0, priority=1))
    cell.answer(commands)
    table = cell.core.table
    assert (table.instance[table.row_of["high"]], table.instance[table.row_of["low"]]) == (0, NOWHERE)


def test_an_urgent_request_keeps_a_responsive_instance_free() -> None:
    """An unresponsive one is emptier, but receives one request at a time."""
    cluster = Cluster(400, 400)
    cluster.fleet.unresponsive[1] = True
    busy = [cluster.add(100, -50.0, index=0) for _ in range(3)]
    cluster.add(100, -50.0, index=1)
    large = cluster.add(400, 5.0)
    small = cluster.add(100, 20.0)
    cluster.place(urgent=[large])
    assert cluster.where(small) == NOWHERE
    for row in busy:
        cluster.end(row)
    cluster.place(urgent=[large])
    assert cluster.where(large) == 0


def equal_cost(fleet: Fleet, _tokens: Int64) -> Float64:
    return np.ones(len(fleet.tokens))


@pytest.mark.parametrize(("current", "expected"), [(NOWHERE, 2), (0, 0), (1, 1)])
def test_at_equal_cost_a_request_stays_and_a_waiting_one_takes_the_emptiest(current: int, expected: int) -> None:
    cluster = Cluster(1000, 1000, 1000)
    for index, tokens in enumerate((300, 200, 100)):
        cluster.add(tokens, 0.0, index)
    row = cluster.add(100, 0.0, current)
    placed = place_in_order(np.array([row]), cluster.table, cluster.fleet, equal_cost)
    assert placed.tolist() == [expected]
