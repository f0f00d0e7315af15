"""Algorithm 2, in arrays, against the paper's pseudo-code transcribed line by line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.algorithms.load_control import highest_allowed, request_load
from shared.arrays import Bool, Float64, Int64


def transcription(load: Float64, lowest: Int64, capacity: float, guaranteed: Bool) -> list[int]:
    """UpdateAllowedConfThresholds as printed, with R in the order of service; guaranteed requests count first."""
    n, top = load.shape[0], load.shape[1] - 1
    order = [*np.flatnonzero(guaranteed), *np.flatnonzero(~guaranteed)]
    least = [load[i, lowest[i]] for i in order]
    min_remain_load = [0.0] * n
    for i in range(n - 2, -1, -1):
        min_remain_load[i] = min_remain_load[i + 1] + least[i + 1]
    used_load = 0.0
    highest = [0] * n
    for i, request in enumerate(order):
        for c in range(top, lowest[request] - 1, -1):
            fits = used_load + load[request, c] + min_remain_load[i] <= capacity
            if fits or c == lowest[request] or guaranteed[request]:
                used_load += load[request, c]
                highest[request] = c
                break
    return highest


@st.composite
def loads(draw: st.DrawFn) -> tuple[Float64, Int64]:
    n, c = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    steps = [sorted(draw(st.lists(st.integers(0, 40), min_size=c, max_size=c))) for _ in range(n)]
    lowest = draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n))
    return np.array(steps, dtype=np.float64), np.array(lowest)


@given(case=loads(), share=st.floats(0, 1.2))
def test_arrays_and_pseudo_code_agree(case: tuple[Float64, Int64], share: float) -> None:
    load, lowest = case
    none = np.zeros(len(load), dtype=np.bool_)
    capacity = float(np.floor(share * load[:, -1].sum()))
    assert highest_allowed(load, lowest, capacity, none).tolist() == transcription(load, lowest, capacity, none)


@pytest.mark.parametrize("seed", range(20))
def test_arrays_and_pseudo_code_agree_on_random_loads_of_a_large_cluster(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(150):
        n, c = int(random.integers(1, 60)), int(random.integers(1, 6))
        load = np.sort(random.integers(0, 1000, (n, c)), axis=1).astype(np.float64)
        lowest = random.integers(0, c, n)
        guaranteed = random.random(n) < 0.1
        capacity = float(random.integers(0, 1000 * n))
        expected = transcription(load, lowest, capacity, guaranteed)
        assert highest_allowed(load, lowest, capacity, guaranteed).tolist() == expected


@given(case=loads(), share=st.floats(0, 1.5))
def test_committed_load_is_within_capacity_unless_all_are_at_their_lowest(
    case: tuple[Float64, Int64], share: float
) -> None:
    load, lowest = case
    capacity = share * float(load[:, -1].sum())
    highest = highest_allowed(load, lowest, capacity, np.zeros(len(load), dtype=np.bool_))
    assert (highest >= lowest).all()
    committed = load[np.arange(len(load)), highest].sum()
    assert committed <= capacity or (load[np.arange(len(load)), highest] == load[np.arange(len(load)), lowest]).all()


def test_earlier_requests_are_served_first_and_all_keep_their_lowest() -> None:
    load = np.array([[10.0, 20.0, 40.0]] * 3)
    lowest, none = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.bool_)
    assert highest_allowed(load, lowest, 70.0, none).tolist() == [2, 1, 0]
    assert highest_allowed(load, lowest, 5.0, none).tolist() == [0, 0, 0]


def test_guaranteed_requests_keep_the_full_range_under_any_load() -> None:
    load = np.array([[10.0, 40.0]] * 2)
    assert highest_allowed(load, np.zeros(2, dtype=np.int64), 1.0, np.array([False, True])).tolist() == [0, 1]


def test_a_cache_step_counts_its_block_and_a_recompute_step_the_sequence() -> None:
    load = request_load(np.array([[5.0, 9.0]]), np.array([[2.0, 2.0]]), np.array([100.0]), np.array([32.0]))
    assert load.tolist() == [[3 * 32 + 200, 7 * 32 + 200]]
