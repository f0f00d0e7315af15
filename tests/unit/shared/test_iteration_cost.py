"""The cost of an iteration."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.iteration_cost import IterationCost
from shared.messages.steps import StepKind
from shared.profile import MIXED, LatencyProfile, MeasuredLatency

RECOMPUTE, CACHE = StepKind.RECOMPUTE, StepKind.CACHE
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


def test_one_kind_of_step_costs_its_lookup() -> None:
    profile = LatencyProfile.from_rows(CURVES)
    assert seconds(cost(), 320, 0) == profile.latency_s(1, 320, CACHE)
    assert seconds(cost(), 0, 8192) == profile.latency_s(1, 8192, RECOMPUTE)
    assert seconds(cost(), 0, 0) == 0.0


def test_without_mixed_rows_both_kinds_cost_the_sum_less_the_shared_launch() -> None:
    assert seconds(cost(), 64, 400) == pytest.approx(both(64, 400))
    assert seconds(cost(shared_launch_s=0.017), 64, 400) == pytest.approx(both(64, 400) - 0.017)


def test_the_saving_is_the_median_of_the_measured_iterations() -> None:
    saved_ms = {(64, 2048): 1, (512, 256): 25, (96, 300): 20}
    of = cost(*(mixed(*at, both(*at) - saved / 1000) for at, saved in saved_ms.items()))
    assert seconds(of, 288, 640) == pytest.approx(both(288, 640) - 0.020)


def test_measured_iterations_that_take_longer_than_two_save_nothing() -> None:
    assert seconds(cost(mixed(64, 400, both(64, 400) + 0.010)), 64, 400) == pytest.approx(both(64, 400))


def test_the_measured_saving_is_kept_beyond_the_measured_iterations() -> None:
    of = cost(mixed(64, 256, both(64, 256) - 0.015), shared_launch_s=0.5)
    assert [seconds(of, *parts) for parts in ((32, 64), (512, 2048))] == pytest.approx(
        [both(32, 64) - 0.015, both(512, 2048) - 0.015]
    )


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
