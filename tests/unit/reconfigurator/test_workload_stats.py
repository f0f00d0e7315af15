"""From the requests of a window to the workload to plan for."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.workload_stats import (
    MAX_CLASSES,
    MIN_STEPS,
    SLO_SPREADS,
    PlanningSettings,
    RequestSample,
    class_loads,
    request_class,
    tokens_per_step,
    workload,
)
from shared.messages.requests import ThresholdUse
from tests.support.workloads import PROFILE

PLANNING = PlanningSettings(thresholds=[0.5, 0.9], tp_degrees=[1, 2], batch_sizes=[32, 256], rps_buffer=0.1)


def sample(prompt: int = 100, output: int = 64, slo_s: float = 5.0, unmasked: int | None = None) -> RequestSample:
    return RequestSample(prompt_tokens=prompt, output_tokens=output, slo_s=slo_s, unmasked_tokens=unmasked)


@pytest.mark.parametrize(
    ("prompt", "output", "name"),
    [(0, 32, "p128-o64"), (128, 64, "p128-o64"), (129, 65, "p512-o128"), (9000, 8192, "p2049+-o1025+")],
)
def test_a_size_is_a_bucket_of_prompt_and_output_length(prompt: int, output: int, name: str) -> None:
    assert request_class(prompt, output) == name


def test_rates_and_means_are_those_of_each_class() -> None:
    small, large = class_loads([sample(10), sample(30), sample(1000, 512)], window_s=4.0)
    assert (small.name, small.rps, small.prompt_tokens, small.slo_s) == ("p128-o64", 0.5, 20.0, 5.0)
    assert (large.name, large.rps, large.output_tokens) == ("p2048-o512", 0.25, 512.0)


def test_each_slo_of_a_size_is_a_class_with_its_own_figures() -> None:
    mixed = [sample(10, slo_s=39.6), sample(30, slo_s=6.6), sample(50, slo_s=6.6), sample(9, 512, slo_s=6.6)]
    loads = class_loads(mixed, window_s=2.0)
    assert [(load.name, load.slo_s, load.rps, load.prompt_tokens) for load in loads] == [
        ("p128-o512", 6.6, 0.5, 9.0),
        ("p128-o64-slo6.6", 6.6, 1.0, 40.0),
        ("p128-o64-slo39.6", 39.6, 0.5, 10.0),
    ]
    planned = PlanInput(workload(loads, {0.5: 6.0, 0.9: 2.0}, PLANNING, [4]), PROFILE)
    assert planned.SLO.tolist() == [6.6, 6.6, 39.6]


@given(slos_s=st.lists(st.floats(0.1, 1000), min_size=1, max_size=200))
def test_many_slos_share_few_classes_that_have_the_lowest_of_theirs(slos_s: list[float]) -> None:
    loads = class_loads([sample(slo_s=slo_s) for slo_s in slos_s], window_s=1.0)
    assert len(loads) <= MAX_CLASSES
    assert [load.slo_s for load in loads] == sorted({load.slo_s for load in loads})
    for slo_s in slos_s:
        own_s = max(load.slo_s for load in loads if load.slo_s <= slo_s)
        assert slo_s <= max(SLO_SPREADS) * own_s
    if len(set(slos_s)) <= MAX_CLASSES:
        assert {load.slo_s for load in loads} == set(slos_s)


def test_an_empty_window_has_no_class() -> None:
    assert class_loads([], window_s=4.0) == []


def test_completed_requests_give_the_unmasked_share_of_outputs() -> None:
    [load] = class_loads([sample(unmasked=32), sample(unmasked=64), sample()], window_s=1.0)
    assert (load.output_tokens, load.unmasked_tokens) == (64, 48)


def test_the_workload_has_headroom_and_counts_unused_output_as_prompt() -> None:
    loads = class_loads([sample(unmasked=32)], window_s=0.5)
    [planned] = workload(loads, {0.5: 4.0, 0.9: 2.0}, PLANNING, [2]).classes
    assert (planned.prompt_tokens, planned.output_tokens, planned.slo_s) == (132, 32, 5.0)
    assert planned.rps == pytest.approx(2.2)
    exact = replace(PLANNING, exact_cache=True)
    [planned] = workload(loads, {0.5: 4.0, 0.9: 2.0}, exact, [2]).classes
    assert (planned.prompt_tokens, planned.output_tokens) == (100, 32)  # no step feeds the unused output


def test_tokens_per_step_are_observed_or_the_scaled_prior() -> None:
    uses = [ThresholdUse(threshold=0.9, steps=MIN_STEPS, tokens=3 * MIN_STEPS)] * 2
    rare = ThresholdUse(threshold=0.5, steps=MIN_STEPS - 1, tokens=1000)
    assert tokens_per_step([*uses, rare], [0.5, 0.9], {0.5: 6.0, 0.9: 2.0}) == {0.5: 9.0, 0.9: 3.0}
    assert tokens_per_step(uses, [0.5, 0.9], {}) == {0.5: 3.0, 0.9: 3.0}
    assert tokens_per_step([rare], [0.5, 0.9], {0.5: 6.0, 0.9: 2.0}) == {0.5: 6.0, 0.9: 2.0}
    assert tokens_per_step([rare], [0.5, 0.9], {}) == {}


@given(
    requests=st.lists(st.builds(sample, st.integers(0, 5000), st.integers(1, 8192), st.floats(0.1, 99)), min_size=1),
    window_s=st.floats(0.1, 600),
)
@example(requests=[sample(1, 1, 99.0), sample(1, 1, 98.99999999)], window_s=1.0)
def test_every_request_counts_once_and_every_window_can_be_planned(
    requests: list[RequestSample], window_s: float
) -> None:
    loads = class_loads(requests, window_s)
    assert sum(load.rps for load in loads) * window_s == pytest.approx(len(requests))
    p = PlanInput(workload(loads, {0.5: 6.0, 0.9: 2.0}, PLANNING, [4, 0]), PROFILE)
    assert p.RPS.sum() * window_s == pytest.approx(1.1 * len(requests))
