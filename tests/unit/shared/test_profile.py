"""Latency profiles, and the cost of an iteration by them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import BadInput
from shared.iteration_cost import IterationCost
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


@pytest.mark.parametrize(("tokens", "latency_s"), [(100, 0.020), (200, 0.025), (1, 0.020), (0, 0.020), (600, 0.060)])
def test_latency_is_interpolated_clamped_below_and_proportional_above(tokens: int, latency_s: float) -> None:
    assert PROFILE.latency_s(1, tokens, RECOMPUTE) == pytest.approx(latency_s)
    assert PROFILE.latency_s(2, 100, RECOMPUTE) == 0.0125


DETAILED = """tp,batch_tokens,step_kind,latency_ms,context_tokens,recompute_tokens
1,100,recompute,20,,
1,32,cache,10,256,
1,32,cache,11,4096,
1,132,mixed,25,356,100
"""


@pytest.mark.parametrize("name", ["profile.csv", "profile.csv.gz"])
def test_a_profile_round_trips_through_a_file_with_the_columns_that_it_has(tmp_path: Path, name: str) -> None:
    for profile in (PROFILE, detailed := LatencyProfile.from_csv(DETAILED)):
        write_profile(tmp_path / name, profile)
        assert read_profile(tmp_path / name).to_csv() == profile.to_csv()
    assert PROFILE.to_csv().splitlines()[0] == "tp,batch_tokens,step_kind,latency_ms"
    assert detailed.to_csv() == DETAILED
    assert detailed.rows[-1] == MeasuredLatency(1, 132, MIXED, 0.025, context_tokens=356, recompute_tokens=100)
    assert detailed.latency_s(1, 32, CACHE) == 0.010


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
        ("tp,batch_tokens,step_kind,latency_ms\n1,3\r2,cache,5\n", "a latency profile must be CSV: new-line character"),
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


# 30 ms + 0.05 ms a token; 20 ms + 0.2 ms a token
CURVES = [
    *((1, n, RECOMPUTE, 0.030 + 0.05e-3 * n) for n in (32, 4096)),
    *((1, n, CACHE, 0.020 + 0.2e-3 * n) for n in (32, 2048)),
]


def mixed(cached: int, recomputed: int, latency_s: float, keys: int = 0) -> MeasuredLatency:
    context = keys + recomputed if keys else 0
    return MeasuredLatency(1, cached + recomputed, MIXED, latency_s, context, recomputed)


def cost(*rows: MeasuredLatency, shared_launch_s: float = 0.0) -> IterationCost:
    return LatencyProfile.from_rows([*CURVES, *rows]).with_shared_launch(shared_launch_s).cost(1)


def seconds(of: IterationCost, cached: float, recomputed: float, keys: float = 0) -> float:
    return float(
        of.seconds(cache_tokens=cached, recompute_tokens=recomputed, cache_keys=keys, recompute_keys=recomputed)
    )


def both(cached: float, recomputed: float) -> float:
    return (0.020 + 0.2e-3 * cached) + (0.030 + 0.05e-3 * recomputed)


def test_without_mixed_rows_both_kinds_cost_the_sum_less_the_shared_launch() -> None:
    assert seconds(cost(), 64, 400) == pytest.approx(both(64, 400))
    assert seconds(cost(), 0, 0) == 0.0
    assert seconds(cost(shared_launch_s=0.017), 64, 400) == pytest.approx(both(64, 400) - 0.017)


def test_the_saving_is_the_median_of_the_measured_iterations() -> None:
    saved_ms = {(64, 2048): 1, (512, 256): 25, (96, 300): 20}
    of = cost(*(mixed(*at, both(*at) - saved / 1000) for at, saved in saved_ms.items()), shared_launch_s=0.5)
    for at in ((288, 640), (32, 64), (1024, 4096)):  # between them and beyond
        assert seconds(of, *at) == pytest.approx(both(*at) - 0.020)


def test_more_keys_than_measured_cost_the_fitted_slope() -> None:
    deeper = [
        MeasuredLatency(1, n, CACHE, 0.020 + 0.2e-3 * n + extra, 8 * n + more)
        for n in (32, 2048)
        for more, extra in ((0, 0.0), (10_000, 0.005))
    ]
    of = LatencyProfile.from_rows([*CURVES[:2], *deeper]).cost(1)
    measured_s = 0.020 + 0.2e-3 * 320
    assert [seconds(of, 320, 0, keys) for keys in (0, 1000, 2560, 12_560, 22_560)] == pytest.approx(
        [measured_s, measured_s, measured_s, measured_s + 0.005, measured_s + 0.010]
    )


def test_one_context_only_costs_nothing_extra() -> None:
    rows = [MeasuredLatency(*row[:4], context_tokens=8 * row[1]) for row in CURVES]
    of = LatencyProfile.from_rows(rows).cost(1)
    assert seconds(of, 320, 0, keys=100_000) == seconds(cost(), 320, 0)


def test_a_mixed_row_counts_its_own_keys() -> None:
    deeper = [MeasuredLatency(1, 64, CACHE, 0.0328 + extra, keys) for keys, extra in ((512, 0.0), (2512, 0.004))]
    of = LatencyProfile.from_rows(
        [*CURVES[:2], *deeper, mixed(64, 400, both(64, 400) - 0.010 + 0.004, keys=2512)]
    ).cost(1)
    assert seconds(of, 64, 400, keys=2512) == pytest.approx(both(64, 400) + 0.004 - 0.010)
    assert seconds(of, 64, 400, keys=512) == pytest.approx(both(64, 400) - 0.010)


def test_without_cache_rows_a_cache_step_costs_a_recompute_of_its_tokens() -> None:
    of = LatencyProfile.from_rows(CURVES[:2]).cost(1)
    assert seconds(of, 320, 0) == seconds(of, 0, 320)


tokens = st.integers(0, 20_000)


@st.composite
def costs(draw: st.DrawFn) -> IterationCost:
    """Costs of arbitrary ascending curves with arbitrary contexts and mixed rows."""
    rows = []
    for kind in StepKind:
        at_s = 0.0
        for n in sorted(draw(st.sets(st.integers(1, 8192), min_size=1, max_size=4))):
            at_s += draw(st.floats(0.001, 0.1))
            contexts = draw(st.lists(st.integers(1, 50_000), max_size=2, unique=True)) or [0]
            rows += [MeasuredLatency(1, n, kind, at_s + 1e-7 * keys, keys) for keys in contexts]
    sizes = st.tuples(st.integers(1, 4096), st.integers(1, 4096))
    for cached, recomputed in draw(st.sets(sizes, max_size=5)):
        rows.append(mixed(cached, recomputed, draw(st.floats(0.001, 0.5))))
    return LatencyProfile.from_rows(rows).with_shared_launch(draw(st.floats(0.0, 0.05))).cost(1)


@given(costs(), tokens, tokens, tokens, tokens)
def test_more_tokens_never_cost_less(of: IterationCost, cached: int, more: int, recomputed: int, extra: int) -> None:
    base_s = seconds(of, cached, recomputed)
    rising = [curve for curve in (of.cache, of.recompute) if (np.diff(curve.latency_s) >= 0).all()]
    if len(rising) == 2:
        assert seconds(of, cached + more, recomputed + extra) >= base_s - 1e-12


@given(costs(), tokens, tokens, tokens)
def test_both_kinds_cost_at_least_either(of: IterationCost, cached: int, recomputed: int, keys: int) -> None:
    alone = seconds(of, cached, 0, keys), seconds(of, 0, recomputed)
    assert max(alone) <= seconds(of, cached, recomputed, keys) <= sum(alone) + 1e-12


@given(costs(), st.lists(st.tuples(tokens, tokens, tokens), min_size=1, max_size=8))
def test_arrays_cost_what_their_elements_cost(of: IterationCost, rows: Sequence[tuple[int, int, int]]) -> None:
    cached, recomputed, keys = np.array(rows).T
    together = of.seconds(cache_tokens=cached, recompute_tokens=recomputed, cache_keys=keys, recompute_keys=recomputed)
    assert together.tolist() == [seconds(of, *row) for row in rows]
