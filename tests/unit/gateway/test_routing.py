"""The choice among the cells of a model."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.routing import CellLoad, route

LOADS = st.builds(
    CellLoad, accepts=st.booleans(), slack=st.floats(-5, 1), requests=st.integers(0, 1000), sent=st.integers(0, 1000)
)
CELLS = st.lists(LOADS, min_size=1, max_size=8)
SEEDS = st.integers(0, 2**32)


def routed(cells: list[CellLoad], seed: int = 0) -> list[int]:
    return list(route(len(cells), cells.__getitem__, random.Random(seed)))


@given(CELLS, SEEDS)
def test_each_cell_that_accepts_requests_is_offered_them_once(cells: list[CellLoad], seed: int) -> None:
    assert sorted(routed(cells, seed)) == [i for i, cell in enumerate(cells) if cell.accepts]


@given(CELLS, SEEDS)
def test_a_full_cell_is_passed_by_while_another_one_has_slack(cells: list[CellLoad], seed: int) -> None:
    some_have_slack = any(cell.accepts and cell.slack_left > 0 for cell in cells)
    first = routed(cells, seed)[:1]
    assert not some_have_slack or [cells[i].slack_left > 0 for i in first] == [True]


@given(CELLS, SEEDS)
def test_further_cells_follow_in_the_order_of_their_slack(cells: list[CellLoad], seed: int) -> None:
    ranks = [cells[i].rank for i in routed(cells, seed)[1:]]
    assert ranks == sorted(ranks, reverse=True)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8, unique=True), SEEDS)
def test_the_cell_with_the_least_slack_is_never_the_first(slacks: list[float], seed: int) -> None:
    cells = [CellLoad(slack=slack) for slack in slacks]
    assert routed(cells, seed)[0] != slacks.index(min(slacks))


@given(st.integers(2, 64), SEEDS)
def test_the_choice_reads_the_loads_of_two_cells(number: int, seed: int) -> None:
    read = list[int]()

    def load_of(cell: int) -> CellLoad:
        read.append(cell)
        return CellLoad(slack=1.0)

    next(route(number, load_of, random.Random(seed)))
    assert len(read) == 2


def test_idle_cells_share_the_requests() -> None:
    source, cells = random.Random(0), [CellLoad(slack=1.0)] * 4
    first = Counter(next(route(4, cells.__getitem__, source)) for _ in range(4000))
    assert all(900 < first[cell] < 1100 for cell in range(4))


def test_requests_sent_since_the_last_message_fill_a_cell() -> None:
    cell = CellLoad(slack=0.5, requests=100, sent=100)
    assert cell.slack_left == 0.0
