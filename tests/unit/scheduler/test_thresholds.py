"""Algorithm 1 in arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from services.scheduler.algorithms.thresholds import choose_thresholds, time_left_s
from shared.arrays import Float64, Int64


def indices(*values: int) -> Int64:
    return np.array(values, dtype=np.int64)


def test_the_highest_allowed_threshold_that_fits_is_chosen() -> None:
    left_s = np.array([[1.0, 2.0, 4.0]] * 3)
    slo_left_s = np.array([2.0, 4.0, 9.0])
    assert choose_thresholds(left_s, slo_left_s, indices(0, 0, 0), indices(2, 1, 2)).tolist() == [1, 1, 2]


def test_the_lowest_allowed_threshold_is_chosen_if_none_fits() -> None:
    left_s = np.array([[1.0, 2.0, 4.0]] * 2)
    assert choose_thresholds(left_s, np.array([0.5, -3.0]), indices(0, 1), indices(2, 2)).tolist() == [0, 1]


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
