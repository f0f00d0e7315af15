"""The paper's algorithms: the choice of thresholds, load control, and the examples of docs/concepts.md."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from services.scheduler.algorithms.common_level import STEP_FACTOR, STEP_MARGIN, highest_within, level_at
from services.scheduler.algorithms.paper import choose_thresholds, highest_allowed, request_load, time_left_s
from shared.arrays import Bool, Float64, Int64


def indices(*values: int) -> Int64:
    return np.array(values, dtype=np.int64)


def test_the_highest_allowed_threshold_that_fits_is_chosen_or_the_lowest() -> None:
    left_s, slo_left_s = np.array([[1.0, 2.0, 4.0]] * 5), np.array([2.0, 4.0, 9.0, 0.5, -3.0])
    lowest, highest = indices(0, 0, 0, 0, 1), indices(2, 1, 2, 2, 2)
    assert choose_thresholds(left_s, slo_left_s, lowest, highest).tolist() == [1, 1, 2, 0, 1]


def test_cache_and_recompute_steps_have_their_own_latency() -> None:
    left_s = time_left_s(np.array([[10.0, 20.0]]), np.array([[2.0, 2.0]]), np.array([0.5]), np.array([0.1]))
    np.testing.assert_allclose(left_s, [[8 * 0.1 + 1.0, 18 * 0.1 + 1.0]])


@given(left_s=arrays(np.float64, (4, 5), elements=st.floats(0, 10)), slo=st.floats(0, 9), more_s=st.floats(0, 9))
def test_more_time_never_lowers_a_threshold(left_s: Float64, slo: float, more_s: float) -> None:
    lowest, highest = indices(0, 0, 1, 2), indices(4, 2, 3, 2)
    tight = choose_thresholds(left_s, np.full(4, slo), lowest, highest)
    loose = choose_thresholds(left_s, np.full(4, slo + more_s), lowest, highest)
    assert (tight <= loose).all()
    assert ((tight >= lowest) & (tight <= highest)).all()


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


def test_a_cache_step_counts_its_block_and_a_recompute_step_the_sequence() -> None:
    load = request_load(np.array([[5.0, 9.0]]), np.array([[2.0, 2.0]]), np.array([100.0]), np.array([32.0]))
    assert load.tolist() == [[3 * 32 + 200, 7 * 32 + 200]]


CANDIDATES = [0.5, 0.7, 0.9]
STEPS_LEFT = np.array([28.0, 38.0, 60.0])  # at each candidate


def threshold(steps_left: Float64, slo_left_s: float) -> float:
    rows = steps_left[None, :]
    left_s = time_left_s(rows, rows, recompute_latency_s=np.array([0.02]), cache_latency_s=np.array([0.0]))
    lowest, highest = np.array([0]), np.array([2])
    chosen = choose_thresholds(left_s, np.array([slo_left_s]), lowest, highest)
    return CANDIDATES[int(chosen[0])]


def test_algorithm_1() -> None:
    assert threshold(STEPS_LEFT, slo_left_s=1.0) == 0.7
    assert threshold(STEPS_LEFT - 24, slo_left_s=0.8) == 0.9


def test_algorithm_2() -> None:
    steps_left = np.tile(STEPS_LEFT, (3, 1))
    load = request_load(steps_left, steps_left, tokens=np.full(3, 256.0), block_length=np.full(3, 32.0))
    assert load[0].tolist() == [7168, 9728, 15360]
    allowed = highest_allowed(load, np.zeros(3, np.int64), 512 / 0.030 * 2, guaranteed=np.zeros(3, np.bool_))
    assert [CANDIDATES[i] for i in allowed] == [0.9, 0.7, 0.5]


def test_the_common_level() -> None:
    each_share = 60 * 0.020 / 20 / 5.0
    levels = [level_at(25 * each_share / instances, 0.5, 0.9) for instances in (1, 2)]
    np.testing.assert_allclose(levels, [0.85, 0.9])
    np.testing.assert_allclose([level_at(booked, 0.5, 0.9) for booked in (0.25, 0.45, 0.7)], [0.9, 0.7, 0.5])


def test_a_lower_threshold_for_a_deadline() -> None:
    max_steps = (np.array([0.96]) / 0.020 - STEP_MARGIN) / STEP_FACTOR
    assert int(max_steps[0]) == 38
    [chosen] = highest_within(STEPS_LEFT[None, :], np.array(CANDIDATES), max_steps)
    assert np.floor(chosen * 100) / 100 == 0.7
