"""What is simulated: the cluster, the policy and the models of its parts, put together under one seed."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import numpy as np
from msgspec.structs import replace

from services.predictor.model import StepPredictor
from services.scheduler.factory import candidates
from services.scheduler.settings import SchedulerSettings
from shared.errors import BadInput
from shared.messages.instances import Instance, ModelCard
from shared.messages.steps import StepKind
from shared.predictor_card import PredictorCard
from shared.profile import LatencyProfile
from simulator.cluster import SimulatedCluster, build_core
from simulator.confidences import Confidences
from simulator.estimates import OracleEstimates, Predictor, TrainedEstimates
from simulator.predictor_training import train_predictor
from simulator.reconfiguration import PlanFor, Reconfigurator, SimulatedReconfiguration
from simulator.result import Records
from simulator.steps_table import StepsTable
from simulator.trace_replay import RecordedConfidences, RecordedRequests
from simulator.unloaded_latency import SLO_MULTIPLE, isolated_latency_s
from simulator.unmasking_model import UnmaskingTables
from simulator.workload import ArrivalTrace

CARD = ModelCard(name="simulated", max_length=1 << 20, mask_token_id=0, eos_token_id=1, vocab_size=2)
NOISE = 0.1  # how wrong the step predictor is: standard deviation of the logarithm of the factor
GRANULARITY = 8  # newly unmasked tokens between two estimates of a request
NOTICED_AFTER_S = 5.0  # until the scheduler knows that an instance is dead
LivePredictor = tuple[StepPredictor, PredictorCard]
PredictorName = Literal["oracle", "noisy", "one-shot", "trained"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An instance, by its number from 0, dies."""

    at_s: float
    instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Units: slo_s in seconds, for requests without one of their own; None: SLO_MULTIPLE times the isolated mean."""

    profile: LatencyProfile
    steps: StepsTable
    recorded: RecordedRequests | None = None  # what steps unmask; None: the model of denoising by the steps table tells
    registered: LatencyProfile | None = None  # what the scheduler is told of instances; None: the profile itself
    instances: tuple[int, ...]  # TP degree of each
    settings: SchedulerSettings
    predictor: PredictorName = "noisy"  # one-shot: there is none; trained: the live one
    noise: float = NOISE  # of the noisy one
    live: LivePredictor | None = None  # the one that is trained; None: one is trained on the model of denoising
    slo_s: float | None = None
    seed: int = 0
    message_s: float = 0.0  # that a message takes, from client to scheduler or between scheduler and instance
    shared_launch_s: float = 0.0  # that an iteration of both kinds takes less than the sum of two lookups
    max_batch_tokens: int = 8192
    max_batch_requests: int = 64
    failures: tuple[Failure, ...] = field(default=())
    reconfiguration: SimulatedReconfiguration | None = None  # None: the instances stay as they are

    @property
    def caching(self) -> bool:
        return self.settings.cache != "none"

    def default_slo_s(self, workload: ArrivalTrace) -> float:
        if self.slo_s is not None:
            return self.slo_s
        return SLO_MULTIPLE * isolated_latency_s(workload, self.profile, self.steps, caching=self.caching)


def simulate(
    scenario: Scenario, workload: ArrivalTrace, on_finished: Callable[[int], None] = lambda _: None
) -> Records:
    """Serve the workload to its end.

    Raises: BadInput if the profile lacks a TP degree or kind of step.
    """
    difficulties, chance, predictions = np.random.default_rng(scenario.seed).spawn(3)
    settings = replace(
        scenario.settings, estimates="one-shot" if scenario.predictor == "one-shot" else scenario.settings.estimates
    )
    pace = scenario.recorded or UnmaskingTables(scenario.steps)
    predictor = _predictor(scenario, settings, pace, workload, predictions)
    confidences = None
    if isinstance(predictor, TrainedEstimates):
        n = len(workload)
        confidences = Confidences(pace, n) if isinstance(pace, UnmaskingTables) else RecordedConfidences(pace, n)
    card = scenario.live[1] if scenario.live else None
    cluster = SimulatedCluster(
        workload,
        build_core(
            settings,
            card.mean_tokens_per_step if card else scenario.steps.tokens_at,
            card.update_granularity if card else GRANULARITY,
        ),
        pace,
        confidences,
        scenario.profile,
        scenario.default_slo_s(workload),
        predictor,
        difficulties,
        chance,
        scenario.message_s,
        scenario.shared_launch_s,
    )
    names = (_name(number) for number in count())
    if scenario.reconfiguration is None:
        for tp in scenario.instances:
            cluster.join(_instance(scenario, next(names), tp))
    else:
        basis = PlanFor(scenario.profile, scenario.steps, candidates(settings), scenario.caching)
        reconfigurator = Reconfigurator(
            scenario.reconfiguration, basis, cluster, workload, lambda spec: _instance(scenario, next(names), spec.tp)
        )
        reconfigurator.start(scenario.instances)
    for failure in scenario.failures:
        name = _name(failure.instance)
        cluster.clock.at(failure.at_s, lambda name=name: cluster.fail(name, NOTICED_AFTER_S))  # type: ignore[misc]
    return cluster.run(on_finished)


def read_cluster(text: str) -> tuple[int, ...]:
    """TP degrees of the instances: `8x1,2x4` is eight TP-1 and two TP-4. Raises: BadInput if it is malformed."""
    degrees: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([1-9]\d{0,3})x([1-9]\d{0,3})\s*", part)
        if match is None:
            raise BadInput(f"--cluster {text}: accepted is COUNTxTP[,COUNTxTP...], such as 16x1 or 8x1,2x4")
        degrees += [int(match[2])] * int(match[1])
    return tuple(degrees)


def read_failures(texts: Sequence[str], instances: int) -> tuple[Failure, ...]:
    """Failures written as AT_S:INSTANCE. Raises: BadInput if one is malformed or names no instance."""
    failures = []
    for text in texts:
        match = re.fullmatch(r"(\d+(?:\.\d+)?):(\d{1,6})", text)
        if match is None or int(match[2]) >= instances:
            raise BadInput(f"--fail {text}: accepted is AT_S:INSTANCE, with an instance from 0 to {instances - 1}")
        failures.append(Failure(float(match[1]), int(match[2])))
    return tuple(failures)


def _predictor(
    scenario: Scenario,
    settings: SchedulerSettings,
    pace: UnmaskingTables | RecordedRequests,
    workload: ArrivalTrace,
    random: np.random.Generator,
) -> Predictor | None:
    if settings.policy != "dilaserve" or settings.estimates == "one-shot":
        return None
    thresholds = np.array(candidates(settings))
    if scenario.predictor == "trained":
        if scenario.live is not None:
            return TrainedEstimates(scenario.live[0], thresholds)
        denoising = pace if isinstance(pace, UnmaskingTables) else UnmaskingTables(scenario.steps)
        return TrainedEstimates(train_predictor(denoising, workload.output_tokens, thresholds, random), thresholds)
    return OracleEstimates(pace, thresholds, scenario.noise if scenario.predictor == "noisy" else 0.0, random)


def _instance(scenario: Scenario, name: str, tp: int) -> Instance:
    kinds = (StepKind.RECOMPUTE, StepKind.CACHE) if scenario.caching else (StepKind.RECOMPUTE,)
    for kind in kinds:
        scenario.profile.latency_s(tp, 1.0, kind)  # raises if the profile lacks it
    return Instance(
        instance_id=name,
        model=CARD,
        tp_degree=tp,
        device="simulated",
        max_batch_tokens=scenario.max_batch_tokens,
        max_batch_requests=scenario.max_batch_requests,
        profile=(scenario.registered or scenario.profile).for_tp(tp).to_csv(),
    )


def _name(number: int) -> str:
    return f"sim{number}"
