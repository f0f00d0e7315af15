"""A small cluster in virtual time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.predictor.model import StepPredictor
from services.scheduler.core import SchedulerCore
from services.scheduler.events import Command, Event
from services.scheduler.registry import POLICIES
from services.scheduler.settings import SchedulerSettings
from shared.arrays import pack_float32, pack_int32, pack_int64
from shared.messages.steps import StepJobs, StepKind, StepResults
from shared.profile import LatencyProfile
from simulator.instance import TOKENS, FedTokens, SimulatedInstance, read_jobs
from simulator.predictor_training import train_predictor
from simulator.result import Records, summarize
from simulator.scenario import Failure, Scenario, simulate
from simulator.steps_table import StepsTable
from simulator.unloaded_latency import unloaded_latency_s
from simulator.workload import ArrivalTrace, make_trace
from tests.builders import instance

PROFILE = LatencyProfile.from_rows(
    (tp, tokens, kind, (base + slope * tokens) / 1000 / tp)
    for tp in (1, 2)
    for kind, base, slope in ((StepKind.RECOMPUTE, 30, 0.04), (StepKind.CACHE, 20, 0.2))
    for tokens in (1, 32, 8192)
)
SLOW = StepsTable(np.array([0.9, 1.0]), np.array([1.0, 1.0]))  # every step unmasks one token
STEPS = StepsTable(np.array([0.5, 0.9]), np.array([7.0, 3.25]))


def scenario(steps: StepsTable = STEPS, **options: object) -> Scenario:
    policy = options.pop("policy", "infaas")
    settings = SchedulerSettings(model="m", policy=policy, cache="dual", thresholds=(0.5, 0.7, 0.9))  # type: ignore[arg-type]
    given = {"profile": PROFILE, "steps": steps, "instances": (1,), "settings": settings, "slo_s": 10.0}
    return Scenario(**(given | {"predictor": "noisy"} | options))  # type: ignore[arg-type]


def arrivals(count: int, *, every_s: float = 0.0, prompt: int = 100, output: int = 64) -> ArrivalTrace:
    return make_trace(np.arange(count, dtype=np.float64) * every_s, np.full(count, prompt), np.full(count, output))


def busy(count: int = 12) -> ArrivalTrace:
    random = np.random.default_rng(5)
    return make_trace(
        np.sort(random.uniform(0, 20, count)), random.integers(1, 800, count), 32 * random.integers(1, 9, count)
    )


def test_a_request_alone_takes_the_sum_of_its_steps() -> None:
    """Two blocks of 32 steps each, the first of each a recompute step of 164 tokens."""
    records = simulate(scenario(SLOW), arrivals(1))
    by_hand_s = 2 * (0.030 + 0.04e-3 * 164) + 62 * (0.020 + 0.2e-3 * 32)
    assert records.latency_s.tolist() == pytest.approx([by_hand_s])
    assert records.steps.tolist() == [64]


def test_a_block_causal_request_computes_its_prompt_once() -> None:
    """Its first step feeds prompt and block, the second block's first step both blocks."""
    settings = SchedulerSettings(model="simulated", cache="block", policy="fixed", threshold=0.9)
    records = simulate(scenario(SLOW, settings=settings), arrivals(1))
    first_s, two_blocks_s = 0.030 + 0.04e-3 * 132, 0.020 + 0.2e-3 * 64
    by_hand_s = first_s + two_blocks_s + 62 * (0.020 + 0.2e-3 * 32)
    assert records.latency_s.tolist() == pytest.approx([by_hand_s])
    expected_s = unloaded_latency_s(arrivals(1), PROFILE, SLOW, caching=True, exact=True)
    assert records.latency_s.mean() == pytest.approx(expected_s)


@pytest.mark.parametrize("shared_launch_s", [0.0, 0.005])
def test_a_mixed_iteration_costs_both_lookups_less_the_shared_launch(shared_launch_s: float) -> None:
    """Two recompute steps of 164 tokens and one cache step of 32."""
    simulated = SimulatedInstance(instance(), PROFILE.with_shared_launch(shared_launch_s).cost(1))
    recompute, cached = int(StepKind.RECOMPUTE), int(StepKind.CACHE)
    jobs = StepJobs(
        epoch=1,
        tickets=pack_int64([7, 8, 9]),
        steps=pack_int32([0, 0, 1]),
        blocks=pack_int32([0, 0, 0]),
        thresholds=pack_float32([0.9, 0.9, 0.9]),
        kinds=pack_int32([recompute, recompute, cached]),
    )
    fed = FedTokens(np.full(10, 164), np.full(10, 100), 32, exact=False)
    [batch] = read_jobs([jobs], np.arange(10), np.full(10, 64), fed)
    simulated.accept(batch)
    assert simulated.start() == pytest.approx((0.030 + 0.04e-3 * 328) + (0.020 + 0.2e-3 * 32) - shared_launch_s)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """The events that the scheduler receives."""
    seen: list[Event] = []
    cycle = SchedulerCore.cycle

    def watched(core: SchedulerCore, received: list[Event], now_s: float) -> list[Command]:
        seen.extend(received)
        return cycle(core, received, now_s)

    monkeypatch.setattr(SchedulerCore, "cycle", watched)
    return seen


def test_step_results_carry_the_latency_of_their_iteration(events: list[Event]) -> None:
    records = simulate(scenario(SLOW), arrivals(1))
    times_s = [event.latency_s for event in events if isinstance(event, StepResults)]
    assert sum(times_s) == pytest.approx(float(records.latency_s[0]))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_completes_every_request(policy: str) -> None:
    records = simulate(scenario(policy=policy, instances=(1, 1, 2)), busy())
    assert records.completed.all()
    assert records.tokens_at.sum() == busy().output_tokens.sum()


@pytest.mark.parametrize("predictor", ["oracle", "one-shot", "none", "trained"])
def test_every_predictor_serves(predictor: str) -> None:
    workload = arrivals(40, every_s=0.2, output=128)
    records = simulate(scenario(policy="dilaserve", slo_s=5.0, predictor=predictor), workload)
    assert records.completed.all()
    assert 0.5 <= (records.mean_threshold_used() or 0) < 0.9


def test_without_a_step_predictor_deadlines_still_lower_thresholds() -> None:
    workload = arrivals(60, every_s=0.25, output=128)
    policies = ("fixed", "dilaserve")
    runs = [simulate(scenario(policy=policy, predictor="none", slo_s=6.0), workload) for policy in policies]
    in_time = [float((records.latency_s <= 6.0).mean()) for records in runs]
    assert in_time[0] < 0.5
    assert in_time[1] > 0.9


def test_a_predictor_is_trained_only_for_a_policy_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trainings: list[object] = []

    def watched(*arguments: Any) -> StepPredictor:
        trainings.append(arguments)
        return train_predictor(*arguments)

    monkeypatch.setattr("simulator.scenario.train_predictor", watched)
    simulate(scenario(policy="infaas", predictor="trained"), arrivals(1))
    simulate(scenario(policy="paper", predictor="one-shot"), arrivals(1))
    assert not trainings
    simulate(scenario(policy="paper", predictor="trained"), arrivals(1))
    assert len(trainings) == 1


@pytest.mark.parametrize(
    ("policy", "predictor", "seeds"), [("dilaserve", "noisy", (3, 3, 4)), ("paper", "trained", (3, 3))]
)
def test_results_depend_on_the_seed_alone(policy: str, predictor: str, seeds: tuple[int, ...]) -> None:
    scenarios = (scenario(policy=policy, predictor=predictor, seed=seed) for seed in seeds)
    first, again, *others = (simulate(each, busy()).latency_s.tolist() for each in scenarios)
    assert first == again
    assert first not in others


def test_an_iteration_never_exceeds_the_limits_on_tokens_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    start = SimulatedInstance.start

    def watched(instance: SimulatedInstance) -> float | None:
        latency_s = start(instance)
        if latency_s is not None and instance.running is not None:
            seen.append((instance.running.shape[1], int(instance.running[TOKENS].sum())))
        return latency_s

    monkeypatch.setattr(SimulatedInstance, "start", watched)
    workload = arrivals(30, prompt=200)
    assert simulate(scenario(max_batch_tokens=1500, max_batch_requests=5), workload).completed.all()
    assert max(n for n, _ in seen) == 5
    assert max(tokens for _, tokens in seen) <= 1500


def test_the_scheduler_uses_the_registered_profiles() -> None:
    """With a profile that is 100 times as slow, it uses the lowest threshold, until iterations correct the profile; the
    steps take the same time."""
    short = arrivals(1, output=32)
    slow = LatencyProfile(row._replace(latency_s=100 * row.latency_s) for row in PROFILE.rows)
    informed, misled = (simulate(scenario(policy="dilaserve", registered=known), short) for known in (None, slow))
    assert misled.mean_threshold[0] < 0.7 < informed.mean_threshold[0]
    assert misled.latency_s[0] < informed.latency_s[0]


def test_requests_of_a_failed_instance_continue_on_another() -> None:
    failures = (Failure(at_s=0.5, instance=0),)
    records = simulate(scenario(instances=(1, 1), failures=failures), busy(20))
    assert records.completed.all()
    assert [counts for _, counts in records.instances_at][-1] == {1: 1}


def test_a_request_with_its_own_slo_is_measured_by_it() -> None:
    workload = arrivals(2, every_s=50.0)
    strict = replace(workload, slo_s=np.array([np.nan, 0.1]))
    assert simulate(scenario(), strict).met.tolist() == [True, False]


def test_incomplete_requests_count_as_missed_slos() -> None:
    records = Records(np.array([10.0, 10.0]))
    records.latency_s[0], records.mean_threshold[0], records.steps[0] = 4.0, 0.9, 20
    result = summarize(records, arrivals(2))
    assert (result["requests"], result["completed"], result["failed"], result["slo_attainment"]) == (2, 1, 1, 0.5)
    assert result["timeline"][0]["mean_threshold"] == pytest.approx(0.9)


def test_the_result_has_the_figures_of_each_key() -> None:
    assert "keys" not in summarize(Records(np.array([10.0])), arrivals(1))
    table = replace(STEPS, accuracy=np.array([60.0, 80.0]))
    workload = replace(arrivals(6, every_s=20.0), key=np.array(["a", "b", "a", "", "a", "b"]))
    records = simulate(scenario(table), workload)
    result = summarize(records, workload)
    assert {key: of_key["requests"] for key, of_key in result["keys"].items()} == {"": 1, "a": 3, "b": 2}
    assert result["keys"]["a"]["latency_s"]["mean"] == pytest.approx(records.latency_s[[0, 2, 4]].mean())
    assert result["keys"]["a"]["accuracy"] == pytest.approx(result["accuracy"]) == 0.8
