"""The bound on the accuracy: what fits the slots, and no more."""

import numpy as np
import pytest

from experiments.policies.bound import EFFICIENCY, SLOT_S, FluidLoad, busy_seconds, fluid_load, highest_accuracy
from experiments.policies.points import POINTS
from simulator.workload import make_trace

ACCURACY = np.array([60.0, 80.0])


def load_of(*groups: tuple[int, int, float, float]) -> FluidLoad:
    """Groups of 10 tokens: first and last slot, and busy-seconds at the low and the high candidate."""
    arrives, due, low_s, high_s = zip(*groups, strict=True)
    return FluidLoad(np.array(arrives), np.array(due), np.full(len(groups), 10.0), np.stack([low_s, high_s], axis=1))


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_requests_are_served_at_the_mix_that_fits(instances: int) -> None:
    room_s = EFFICIENCY * SLOT_S * instances
    share = min((room_s - 1.0) / 3.0, 1.0)
    found = highest_accuracy(load_of((0, 0, 1.0, 4.0)), ACCURACY, instances)
    assert found == pytest.approx(60.0 + 20.0 * share, abs=0.01)


def test_work_moves_to_later_slots_but_not_beyond_its_deadline() -> None:
    early, late = (0, 1, 1.0, 1.5), (1, 1, 1.0, 1.5)
    assert highest_accuracy(load_of(early, late), ACCURACY, 1) == pytest.approx(80.0)
    assert highest_accuracy(load_of(late, late), ACCURACY, 1) is None


def test_a_higher_threshold_takes_more_time_and_a_high_load_bounds_it() -> None:
    point = POINTS["gsm8k-19"]
    workload = make_trace(np.linspace(0.0, 30.0, 200), np.full(200, 900), np.full(200, 256))
    assert (np.diff(busy_seconds(point, workload), axis=1) >= 0).all()
    accuracy = point.steps().accuracy_at(np.array([0.5, 0.6, 0.7, 0.8, 0.9]))
    assert accuracy is not None
    found = highest_accuracy(fluid_load(point, workload), accuracy, point.instances)
    assert found is not None
    assert accuracy[0] < found < accuracy[-1]
