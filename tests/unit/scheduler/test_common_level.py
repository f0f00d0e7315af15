"""The common level, and the steps between candidate thresholds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.algorithms.common_level import BOOKED_KNOTS, highest_within, level_at, steps_at
from shared.arrays import Float64

SHARES = st.floats(0, 10)
CANDIDATES = st.lists(st.integers(0, 100), min_size=1, max_size=6, unique=True).map(
    lambda hundredths: np.array(sorted(hundredths)) / 100
)
STEPS = st.floats(1, 5000)


@st.composite
def estimates(draw: st.DrawFn, *, rising: bool = False) -> tuple[Float64, Float64]:
    """Candidates, and the steps left of one request at each; `rising`: more at a higher threshold."""
    candidates = draw(CANDIDATES)
    steps = draw(st.lists(STEPS, min_size=len(candidates), max_size=len(candidates)))
    return candidates, np.array([sorted(steps) if rising else steps])


def highest(candidates: Float64, steps: Float64, max_steps: float) -> float:
    return float(highest_within(steps, candidates, np.array([max_steps]))[0])


def steps_of(candidates: Float64, steps: Float64, threshold: float) -> float:
    return float(steps_at(steps, candidates, np.array([threshold]))[0])


@given(share=SHARES, more=SHARES)
def test_the_level_falls_as_the_booked_share_rises(share: float, more: float) -> None:
    assert 0.5 <= level_at(share + more, 0.5, 0.9) <= level_at(share, 0.5, 0.9) <= 0.9


@pytest.mark.parametrize(
    ("booked", "level"), [(0.0, 0.9), (BOOKED_KNOTS[0], 0.9), (0.45, 0.7), (BOOKED_KNOTS[2], 0.5), (np.inf, 0.5)]
)
def test_the_level_is_within_the_candidates(booked: float, level: float) -> None:
    assert level_at(booked, 0.5, 0.9) == pytest.approx(level)


@given(estimates=estimates(), max_steps=st.floats(-10, 6000), more=st.floats(0, 6000))
def test_more_steps_never_lower_the_highest_threshold_within_them(
    estimates: tuple[Float64, Float64], max_steps: float, more: float
) -> None:
    candidates, steps = estimates
    few, many = highest(candidates, steps, max_steps), highest(candidates, steps, max_steps + more)
    assert candidates[0] <= few <= many + 1e-12
    assert many <= candidates[-1] + 1e-12


@given(estimates=estimates(), max_steps=st.floats(-10, 6000))
def test_the_steps_at_the_highest_threshold_fit(estimates: tuple[Float64, Float64], max_steps: float) -> None:
    """Where none fits, it is the lowest candidate."""
    candidates, steps = estimates
    threshold = highest(candidates, steps, max_steps)
    if steps[0, 0] <= max_steps:
        assert steps_of(candidates, steps, threshold) <= max_steps + 1e-6 * abs(max_steps) + 1e-6
    else:
        assert threshold == candidates[0]


@given(estimates=estimates(), index=st.integers(0, 5))
def test_at_a_candidate_the_steps_are_its_estimate(estimates: tuple[Float64, Float64], index: int) -> None:
    candidates, steps = estimates
    index %= len(candidates)
    assert steps_of(candidates, steps, candidates[index]) == pytest.approx(steps[0, index])


@given(estimates=estimates(), beyond=st.floats(0, 2))
def test_beyond_the_candidates_the_steps_are_constant(estimates: tuple[Float64, Float64], beyond: float) -> None:
    candidates, steps = estimates
    assert steps_of(candidates, steps, candidates[0] - beyond) == pytest.approx(steps[0, 0])
    assert steps_of(candidates, steps, candidates[-1] + beyond) == pytest.approx(steps[0, -1])


def test_between_two_candidates_the_steps_are_interpolated() -> None:
    """A choice among the candidates alone would return 20 or 40 steps, and 0.7."""
    candidates, steps = np.array([0.5, 0.7, 0.9]), np.array([[10.0, 20.0, 40.0]])
    assert steps_of(candidates, steps, 0.8) == pytest.approx(30)
    assert highest(candidates, steps, 30) == pytest.approx(0.8)
