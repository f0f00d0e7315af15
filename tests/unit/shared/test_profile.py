from pathlib import Path

import numpy as np
import pytest

from shared.errors import BadInput
from shared.messages.steps import StepKind
from shared.profile import MIXED, LatencyProfile, MeasuredLatency, read_profile, write_profile

RECOMPUTE, CACHE = StepKind.RECOMPUTE, StepKind.CACHE

TEXT = """tp,batch_tokens,step_kind,latency_ms,origin
1,100,recompute,20,measured
1,300,recompute,30,measured
1,32,cache,10,measured
2,100,recompute,12.5,measured
"""
PROFILE = LatencyProfile.from_csv(TEXT)


def test_latencies_are_in_seconds() -> None:
    assert PROFILE.latency_s(1, 100, RECOMPUTE) == 0.020
    assert PROFILE.latency_s(2, 100, RECOMPUTE) == 0.0125


@pytest.mark.parametrize(("tokens", "latency_s"), [(200, 0.025), (1, 0.020), (0, 0.020), (600, 0.060)])
def test_latency_is_interpolated_clamped_below_and_proportional_above(tokens: int, latency_s: float) -> None:
    assert PROFILE.latency_s(1, tokens, RECOMPUTE) == pytest.approx(latency_s)


def test_an_array_lookup_equals_the_lookups_of_its_elements() -> None:
    tokens = np.array([[0, 50, 100], [150, 300, 900]])
    one_by_one = [[PROFILE.latency_s(1, int(n), RECOMPUTE) for n in row] for row in tokens]
    np.testing.assert_array_equal(PROFILE.latency_s(1, tokens, RECOMPUTE), one_by_one)


def test_a_lookup_without_measurements_is_rejected() -> None:
    with pytest.raises(BadInput, match="no cache rows for tp 2"):
        PROFILE.latency_s(2, 32, CACHE)


def test_for_tp_returns_the_rows_of_one_degree() -> None:
    assert PROFILE.tp_degrees == [1, 2]
    assert PROFILE.for_tp(2).tp_degrees == [2]


@pytest.mark.parametrize("name", ["profile.csv", "profile.csv.gz"])
def test_a_profile_round_trips_through_a_file(tmp_path: Path, name: str) -> None:
    write_profile(tmp_path / name, PROFILE)
    again = read_profile(tmp_path / name)
    assert again.to_csv() == PROFILE.to_csv()
    assert again.latency_s(1, 250, RECOMPUTE) == PROFILE.latency_s(1, 250, RECOMPUTE)


DETAILED = """tp,batch_tokens,step_kind,latency_ms,context_tokens,recompute_tokens
1,100,recompute,20,,
1,32,cache,10,256,
1,32,cache,11,4096,
1,132,mixed,25,356,100
"""


def test_contexts_and_mixed_rows_round_trip() -> None:
    profile = LatencyProfile.from_csv(DETAILED)
    assert profile.to_csv() == DETAILED
    assert profile.rows[-1] == MeasuredLatency(1, 132, MIXED, 0.025, context_tokens=356, recompute_tokens=100)
    assert profile.latency_s(1, 32, CACHE) == 0.010


def test_a_profile_without_optional_columns_is_written_without_them() -> None:
    assert PROFILE.to_csv().splitlines()[0] == "tp,batch_tokens,step_kind,latency_ms"


def test_a_profile_of_a_block_causal_model_is_read() -> None:
    rows = "tp,batch_tokens,step_kind,latency_ms\n1,64,prefill,8\n1,64,denoise,5\n1,64,commit,5\n"
    profile = LatencyProfile.from_csv(rows)
    assert (profile.latency_s(1, 64, RECOMPUTE), profile.latency_s(1, 64, CACHE)) == (0.008, 0.005)
    assert len(profile.rows) == 2


def test_beside_other_rows_those_of_block_causal_models_are_ignored() -> None:
    more = "".join(f"1,64,{kind},5,origin\n" for kind in ("prefill", "denoise", "commit"))
    assert LatencyProfile.from_csv(TEXT + more).to_csv() == PROFILE.to_csv()


def test_a_profile_is_completed_with_the_curves_that_it_lacks() -> None:
    detailed = LatencyProfile.from_csv(DETAILED)
    slow = LatencyProfile(
        row._replace(latency_s=1.0) for tp in (1, 2) for row in (each._replace(tp=tp) for each in detailed.rows)
    )
    own = LatencyProfile.from_rows([(1, 100, RECOMPUTE, 0.02)])
    completed = own.completed_from(slow)
    assert completed.latency_s(1, 100, RECOMPUTE) == 0.02
    assert completed.latency_s(1, 32, CACHE) == 1.0
    # Mixed rows belong to the curves that they were measured with.
    assert [row.tp for row in completed.rows if row.kind == MIXED] == [2]


def test_a_given_shared_launch_becomes_a_mixed_row() -> None:
    given = LatencyProfile.from_csv(PROFILE.with_shared_launch(0.004).to_csv())
    summed = PROFILE.cost(1)
    for tokens in (8, 64, 4096):
        fed = {"cache_tokens": tokens, "recompute_tokens": 2 * tokens}
        assert given.cost(1).seconds(**fed) == pytest.approx(summed.seconds(**fed) - 0.004)
    assert PROFILE.with_shared_launch(0.0) is PROFILE
    detailed = LatencyProfile.from_csv(DETAILED)
    assert detailed.with_shared_launch(0.004).to_csv() == DETAILED


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "missing: tp,batch_tokens"),
        ("tp,batch_tokens,step_kind,latency_ms\n", "no rows"),
        ("tp,batch_tokens,latency_ms\n1,32,5\n", "missing: step_kind"),
        ("tp,batch_tokens,step_kind,latency_ms\n1,32,cache,5\n1,32,other,5\n", "line 3: step_kind"),
        ("tp,batch_tokens,step_kind,latency_ms\n1,32,other,5\n", "accepted: recompute, cache, mixed, prefill"),
        ("tp,batch_tokens,step_kind,latency_ms\n1,32,commit,5\n", "no rows of recompute or cache steps"),
        ("tp,batch_tokens,step_kind,latency_ms\n1,64,mixed,5\n", "line 2: recompute_tokens must be a number above 0"),
        (
            "tp,batch_tokens,step_kind,latency_ms,recompute_tokens\n1,64,mixed,5,64\n",
            "line 2: recompute_tokens of a mixed row must be below batch_tokens, 64",
        ),
        (
            "tp,batch_tokens,step_kind,latency_ms,context_tokens\n1,64,cache,5,-1\n",
            "line 2: context_tokens must be a number above 0",
        ),
        ("tp,batch_tokens,step_kind,latency_ms\n0,32,cache,5\n", "line 2: tp"),
        ("tp,batch_tokens,step_kind,latency_ms\n1,32.5,cache,5\n", "line 2: batch_tokens"),
        ("tp,batch_tokens,step_kind,latency_ms\n1,32,cache,inf\n", "line 2: latency_ms"),
        ("tp,batch_tokens,step_kind,latency_ms\n1,32,cache\n", "line 2: latency_ms"),
        ("tp,batch_tokens,step_kind,latency_ms\n1,32,cache,5\n1,32,cache,6\n", "two rows"),
    ],
)
def test_an_invalid_file_is_reported_with_its_error(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=rf"profile\.csv: .*{fault}"):
        read_profile(path)


def test_a_missing_or_broken_file_is_bad_input(tmp_path: Path) -> None:
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(b"not gzip")
    for path in (tmp_path / "none.csv", broken):
        with pytest.raises(BadInput, match="cannot read the latency profile"):
            read_profile(path)
