"""The cost of iterations on all instances at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.paper.files import PROFILE
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.instance_costs import MAX_GRID_TOKENS
from shared.messages.steps import StepKind
from shared.profile import MIXED, LatencyProfile, MeasuredLatency, read_profile
from tests.builders import instance

RECOMPUTE, CACHE = StepKind.RECOMPUTE, StepKind.CACHE
SUM = LatencyProfile.from_rows([(1, n, kind, 0.02 + 1e-4 * n) for n in (32, 16384) for kind in StepKind])
MERGED = LatencyProfile.from_rows(
    [
        *((1, n, RECOMPUTE, 0.03 + 5e-5 * n) for n in (32, 4096)),
        *(
            MeasuredLatency(1, n, CACHE, 0.01 + 2e-4 * n + 1e-6 * more, 8 * n + more)
            for n in (32, 4096)
            for more in (0, 5000)
        ),
        *(
            MeasuredLatency(1, c + r, MIXED, 0.04 + 2e-4 * c + 5e-5 * r - saved, 8 * c + r, r)
            for c, r, saved in ((32, 256, 0.02), (32, 4096, 0.015), (1024, 256, 0.015), (1024, 4096, 0.01))
        ),
    ]
)
PROFILES = [SUM, MERGED]


def fleet(*profiles: LatencyProfile | None) -> Fleet:
    made = Fleet(1)
    for number, profile in enumerate(profiles):
        made.update(instance(f"i{number}", profile=profile.to_csv() if profile else ""), 0.0)
    return made


@given(st.lists(st.tuples(st.integers(0, 1), *[st.integers(0, 200)] * 2, st.integers(0, 90_000)), min_size=1))
def test_the_fleet_costs_what_the_profiles_cost(rows: list[tuple[int, int, int, int]]) -> None:
    """At multiples of 32 tokens, its grid."""
    at, cached, recomputed, keys = np.array(rows).T
    fed = {"cache_tokens": 32 * cached, "recompute_tokens": 32 * recomputed, "cache_keys": keys}
    found = fleet(*PROFILES).iteration_seconds(at, **fed)
    expected = [
        float(PROFILES[i].cost(1).seconds(cache_tokens=32 * c, recompute_tokens=32 * r, cache_keys=k))
        for i, c, r, k in rows
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_base_of_the_published_profile() -> None:
    made = fleet(read_profile(PROFILE))
    assert 1000 * made.recompute_base_s[0] == pytest.approx(18.3, abs=0.1)
    assert made.shared_launch_s[0] == 0.0


def test_the_shared_launch_of_an_instance_is_the_median_saving() -> None:
    assert fleet(MERGED).shared_launch_s[0] == pytest.approx(0.015)


def test_an_instance_without_a_profile_takes_a_second_for_each_iteration() -> None:
    made = fleet(None)
    cached, recomputed, none = np.array([32, 0, 64]), np.array([0, 900, 900]), np.zeros(3, dtype=np.int64)
    seconds = made.iteration_seconds(none, cache_tokens=cached, recompute_tokens=recomputed, cache_keys=none)
    assert seconds.tolist() == [1.0, 1.0, 1.0]
    assert made.recompute_base_s[0] == pytest.approx(1.0)


def test_beyond_the_grid_seconds_are_proportional_to_the_tokens() -> None:
    made, tokens = fleet(SUM, SUM), np.array([MAX_GRID_TOKENS, 3 * MAX_GRID_TOKENS])
    most, beyond = made.recompute_latency_s(np.array([0, 1]), tokens)
    assert beyond == pytest.approx(3 * most)


def test_a_wrong_profile_is_corrected_within_a_few_iterations() -> None:
    made = fleet(SUM, SUM)
    for _ in range(10):
        made.observe(np.array([0, 1]), np.array([0.02, 0.2]), np.array([0.1, 0.1]))
    assert made.correction[0] == pytest.approx(0.2)
    assert 1.5 < made.correction[1] <= 2.0


def test_iterations_without_a_time_or_that_stall_hardly_correct_the_costs() -> None:
    made = fleet(SUM)
    made.observe(np.zeros(2, dtype=np.int64), np.array([0.0, 0.1]), np.array([0.1, 0.0]))
    assert made.correction[0] == 1.0
    made.observe(np.array([0]), np.array([600.0]), np.array([0.1]))
    assert made.correction[0] < 1.05


def test_a_new_profile_starts_without_correction() -> None:
    made = fleet(SUM)
    made.observe(np.array([0]), np.array([0.5]), np.array([0.1]))
    made.update(instance("i0", profile=SUM.to_csv(), max_batch_requests=3), 0.0)
    assert made.correction[0] != 1.0
    made.update(instance("i0", profile=MERGED.to_csv()), 0.0)
    assert made.correction[0] == 1.0
