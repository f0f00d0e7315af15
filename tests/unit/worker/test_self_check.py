"""The canary notices a device that computes wrong, and a watchdog notices a hung iteration."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.self_check import Canary, CanaryCheck, CanaryFault, CanaryFaultKind
from services.worker.engine.step_results import IterationResult, StepOutcome, StepReport
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import Runner, TokenPredictions
from services.worker.monitoring import watchdog
from services.worker.monitoring.metrics import WorkerMetrics
from services.worker.monitoring.watchdog import MIN_LIMIT_S, end_when_hung, iteration_limit_s
from shared.arrays import Float64
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from tests.builders import instance
from tests.support.present import present
from tests.support.random_model import MASK_ID, random_decoder
from tests.support.steps import Decode, jobs_for


@dataclass
class Device:
    """A model on a device that can be made to compute wrong."""

    runner: Runner = field(default_factory=lambda: Runner(random_decoder()))
    noise: float = 0.0
    garbage: bool = False
    not_finite: bool = False

    def __post_init__(self) -> None:
        self.config, self.cache_tokens = self.runner.config, 0

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        found = self.runner.run(batch)
        tokens, confidences = found.tokens, np.clip(found.confidences + self.noise, 0.0, 1.0)
        if self.garbage:
            tokens = (tokens + 7) % self.config.vocab_size
        if self.not_finite:
            confidences[0] = np.nan
        return replace(found, tokens=tokens, confidences=confidences)


def assert_fault(found: CanaryFault | None, kind: CanaryFaultKind, reason: str) -> None:
    assert found is not None
    assert found.kind is kind
    assert reason in found.reason


def iteration(*confidences: float) -> IterationResult:
    values: Float64 = np.array(confidences)
    none = np.zeros(0, dtype=np.int64)
    outcome = StepOutcome(none, none, none, values, np.zeros((0, 5), dtype=np.float32), none, batch_tokens=0)
    return IterationResult("a-1", 1, outcome, [], StepReport(), 0.0)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        ({"garbage": True}, CanaryFaultKind.UNLIKE_EARLIER, "its own earlier one: 0% equal tokens"),
        ({"noise": 0.05}, CanaryFaultKind.UNLIKE_EARLIER, "confidences differ by 0.05"),
        ({"not_finite": True}, CanaryFaultKind.NOT_FINITE, "not finite"),
    ],
)
def test_wrong_predictions_are_noticed(fault: dict[str, object], kind: CanaryFaultKind, reason: str) -> None:
    device = Device()
    canary = Canary.measure(device)
    assert canary.check() is None
    for name, value in fault.items():
        setattr(device, name, value)
    assert_fault(canary.check(), kind, reason)


@pytest.mark.parametrize(
    ("fault", "differs"), [({}, False), ({"noise": 0.05}, False), ({"noise": 0.3}, True), ({"garbage": True}, True)]
)
def test_instances_may_differ_by_rounding_only(fault: dict[str, Any], *, differs: bool) -> None:
    record = Canary.measure(Device()).record()
    found = Canary.measure(Device(**fault)).check_against(record)
    assert (found is not None) == differs
    if differs:
        assert_fault(found, CanaryFaultKind.UNLIKE_OTHERS, "that of other instances")


def test_under_load_the_canary_runs_at_its_interval() -> None:
    device, clock = Device(), Clock()
    check = CanaryCheck(Canary.measure(device), 10.0, clock)
    device.garbage = True
    clock.now_s = 9.0
    assert check.after(iteration(0.5)) is None
    clock.now_s = 10.0
    assert_fault(check.after(iteration(0.5)), CanaryFaultKind.UNLIKE_EARLIER, "equal tokens")
    assert check.unverified_s == 10.0


def test_the_metric_of_a_quarantined_instance_has_the_reason() -> None:
    metrics = WorkerMetrics(instance())
    metrics.quarantined(CanaryFaultKind.UNLIKE_OTHERS)
    shown = {
        kind: metrics.registry.get_sample_value("dilaserve_worker_quarantined", {"reason": kind})
        for kind in ("not_finite", "unlike_earlier", "unlike_others")
    }
    assert shown == {"not_finite": 0.0, "unlike_earlier": 0.0, "unlike_others": 1.0}


def test_a_step_of_weights_that_are_not_finite_calls_the_canary() -> None:
    device = Device()
    engine = Engine(device.runner, CacheMode.NONE, EngineLimits(tokens=4096, requests=64), "test-1")
    check = CanaryCheck(Canary.measure(device), 10.0, Clock())
    with torch.no_grad():
        for weights in device.runner.decoder.parameters():
            weights.fill_(torch.nan)
    engine.accept(jobs_for([Decode(1, [3, 4, 5], 32, 16, 0.6, MASK_ID)]))
    assert_fault(check.after(present(engine.run_iteration())), CanaryFaultKind.NOT_FINITE, "not finite")


def test_values_that_are_not_finite_call_the_canary_at_once() -> None:
    device = Device()
    check = CanaryCheck(Canary.measure(device), 10.0, Clock())
    assert check.after(iteration(0.5, np.nan)) is None  # the request's own
    device.not_finite = True
    assert_fault(check.after(iteration(0.5, np.nan)), CanaryFaultKind.NOT_FINITE, "not finite")


class Ended(Exception):  # noqa: N818
    """In place of the end of the process."""


async def hangs(monkeypatch: pytest.MonkeyPatch, running: Callable[[], int], ticks: int) -> bool:
    """Whether the watchdog, with a limit of ten ticks, ends the process within a number of ticks."""
    monkeypatch.setattr(watchdog, "TICK_S", 0.001)

    async def on_hang() -> None:
        raise Ended

    seen = 0

    def count() -> int:
        nonlocal seen
        seen += 1
        if seen > ticks:
            raise TimeoutError
        return running()

    try:
        await end_when_hung(lambda: 0.01, count, on_hang)
    except Ended:
        return True
    except TimeoutError:
        pass
    return False


async def test_an_iteration_beyond_its_limit_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await hangs(monkeypatch, lambda: 7, ticks=1000)


async def test_an_idle_engine_and_short_iterations_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(1, 1000))
    assert not await hangs(monkeypatch, lambda: 0, ticks=50)
    assert not await hangs(monkeypatch, lambda: next(numbers), ticks=50)


async def test_time_in_which_the_process_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    clock = iter(range(0, 100_000, 100))
    monkeypatch.setattr(loop, "time", lambda: float(next(clock)))  # each tick takes 100 s
    assert not await hangs(monkeypatch, lambda: 7, ticks=3)


@pytest.mark.parametrize(
    ("batch_tokens", "text_tokens", "limit_s"),
    [(1024, 8, 40.0), (8, 8, 4 * MIN_LIMIT_S), (1024, 4096, 16 * 40.0)],  # the last: a text longer than a full batch
)
def test_the_limit_is_a_multiple_of_a_full_batch(batch_tokens: int, text_tokens: int, limit_s: float) -> None:
    profile = LatencyProfile.from_rows([(1, 1024, StepKind.RECOMPUTE, 2.0)])
    assert iteration_limit_s(profile, 1, batch_tokens, text_tokens) == pytest.approx(limit_s)
