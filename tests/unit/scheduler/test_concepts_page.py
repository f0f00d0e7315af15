"""The algorithms decide as in the worked examples of docs/concepts.md."""

import numpy as np

from services.scheduler.algorithms.common_level import STEP_FACTOR, STEP_MARGIN, highest_within, level_at
from services.scheduler.algorithms.load_control import highest_allowed, request_load
from services.scheduler.algorithms.thresholds import choose_thresholds, time_left_s
from shared.arrays import Float64

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
