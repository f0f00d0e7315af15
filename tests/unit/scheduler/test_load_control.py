"""Algorithm 2, in arrays, against the paper's pseudo-code transcribed line by line."""

import numpy as np
import pytest

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
