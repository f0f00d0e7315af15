"""A scenario: the cluster, the policy and the models that are simulated, put together under one seed."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace

from services.predictor.model import StepPredictor
from services.reconfigurator.planning.decision import Planner
from services.reconfigurator.planning.workload_stats import PlanningSettings
from services.scheduler.factory import build_core
from services.scheduler.registry import find_policy
from services.scheduler.settings import SchedulerSettings
from shared.arrays import Int64
from shared.errors import BadInput
from shared.messages.cell import is_exact
from shared.messages.instances import Instance, ModelCard
from shared.predictor_card import PredictorCard
from shared.profile import LatencyProfile
from simulator.cluster import SimulatedCluster
from simulator.confidences import Confidences
from simulator.estimates import Predictor, oracle_predictor, trained_predictor
from simulator.outputs import EPOCH, SimulatedOutputs
from simulator.predictor_training import train_predictor
from simulator.reconfiguration import DEFAULTS, SimulatedReconfiguration, SimulatedReconfigurator, nodes_of, place
from simulator.result import Records
from simulator.steps_table import StepsTable
from simulator.unloaded_latency import SLO_MULTIPLE, unloaded_latency_s
from simulator.unmasking_model import NUM_LEVELS, UnmaskingTables
from simulator.workload import ArrivalTrace

CARD = ModelCard(name="simulated", max_length=1 << 20, mask_token_id=0, eos_token_id=1, vocab_size=2)
NOISE = 0.1  # error of the noisy predictor: standard deviation of the logarithm of its factor
GRANULARITY = 8  # newly unmasked tokens between two estimates of a request
LOSS_NOTICED_S = 5.0  # from the death of an instance until the scheduler knows
LivePredictor = tuple[StepPredictor, PredictorCard]
PredictorName = Literal["oracle", "noisy", "one-shot", "none", "trained"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An instance, by its index from 0, dies."""

    at_s: float
    instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Units: slo_s in seconds, for requests without an SLO of their own; None: SLO_MULTIPLE times the unloaded mean."""

    profile: LatencyProfile
    steps: StepsTable
    block_length: int = 32  # tokens
    registered: LatencyProfile | None = None  # that instances register; None: `profile` with the shared launch
    instances: tuple[int, ...]  # TP degree of each
    settings: SchedulerSettings
    policy_options: Mapping[str, Any] = field(default_factory=dict)  # fields of the policy's class
    predictor: PredictorName = "trained"  # a LightGBM predictor; one-shot: its card alone; none: no card
    noise: float = NOISE  # error of the noisy predictor
    live: LivePredictor | None = None  # the trained predictor; None: train one on the unmasking model
    slo_s: float | None = None
    seed: int = 0
    # Time that an iteration of both step kinds saves over the sum of two lookups; a profile with mixed rows has its own
    shared_launch_s: float = 0.0
    max_batch_tokens: int = 8192
    max_batch_requests: int = 64
    failures: tuple[Failure, ...] = ()
    reconfiguration: SimulatedReconfiguration | None = None  # None: the instances stay as they are

    @property
    def caching(self) -> bool:
        return self.settings.cache != "none"

    def default_slo_s(self, workload: ArrivalTrace) -> float:
        if self.slo_s is not None:
            return self.slo_s
        unloaded_s = unloaded_latency_s(
            workload,
            self.profile,
            self.steps,
            caching=self.caching,
            exact=is_exact(self.settings.cache),
            block_length=self.block_length,
        )
        return SLO_MULTIPLE * unloaded_s


def simulate(
    scenario: Scenario, workload: ArrivalTrace, on_finished: Callable[[int], None] = lambda _: None
) -> Records:
    """Serve the workload to its end. Raises: BadInput if the profile lacks a TP degree or kind of step."""
    return build_cluster(scenario, workload).run(on_finished)


def build_cluster(scenario: Scenario, workload: ArrivalTrace) -> SimulatedCluster:
    """The cluster before the first arrival. Raises: as `simulate`."""
    _, step_random, prediction_random = _randoms(scenario.seed)
    settings = replace(scenario.settings, lookahead=0)
    model = UnmaskingTables(scenario.steps, scenario.block_length)
    known = scenario.live[1] if scenario.live else _card(scenario.steps)
    card = None if scenario.predictor == "none" else known
    asks = find_policy(settings.policy_name).uses_estimates and scenario.predictor not in {"one-shot", "none"}
    core = build_core(settings, None, card, EPOCH, asks_predictor=asks, keeps_records=False, **scenario.policy_options)
    predictor = _predictor(scenario, model, workload, prediction_random) if asks else None
    confidences = Confidences(model, len(workload)) if predictor and scenario.predictor == "trained" else None
    levels = difficulty_levels(scenario.seed, len(workload))
    outputs = SimulatedOutputs(workload.output_tokens, levels, model, confidences, step_random)
    slo_s = np.where(np.isnan(workload.slo_s), scenario.default_slo_s(workload), workload.slo_s)
    records = Records(slo_s, scenario.steps)
    profile = scenario.profile.with_shared_launch(scenario.shared_launch_s)
    cluster = SimulatedCluster(workload, records, core, outputs, predictor, profile)
    make_instance = partial(_make_instance, scenario, profile, count())
    if scenario.reconfiguration is None:
        for tp in scenario.instances:
            cluster.join(make_instance(tp))
    else:
        _start_reconfigurator(scenario, scenario.reconfiguration, profile, cluster, make_instance)
    for failure in scenario.failures:
        cluster.clock.at(failure.at_s, partial(cluster.leave, f"sim{failure.instance}", LOSS_NOTICED_S))
    return cluster


def difficulty_levels(seed: int, requests: int) -> Int64:
    """The level of each request. They have a random source of their own, so that they are the same under every policy.
    Shapes: -> [requests]."""
    return _randoms(seed)[0].integers(NUM_LEVELS, size=requests)


def with_trained_predictor(scenario: Scenario, workload: ArrivalTrace) -> Scenario:
    """The scenario with the predictor that it would train, for several clusters that share it."""
    _, _, prediction_random = _randoms(scenario.seed)
    tables = UnmaskingTables(scenario.steps, scenario.block_length)
    thresholds = np.array(scenario.settings.candidates)
    predictor = train_predictor(tables, workload.output_tokens, thresholds, prediction_random)
    return dataclasses.replace(scenario, live=(predictor, _card(scenario.steps)))


def read_failures(texts: Sequence[str], instances: int) -> tuple[Failure, ...]:
    """Read failures written as AT_S:INSTANCE. Raises: BadInput if one is malformed or names no instance."""
    failures = []
    for text in texts:
        match = re.fullmatch(r"(\d+(?:\.\d+)?):(\d{1,6})", text)
        if match is None or int(match[2]) >= instances:
            raise BadInput(f"--fail {text}: accepted is AT_S:INSTANCE, with an instance from 0 to {instances - 1}")
        failures.append(Failure(float(match[1]), int(match[2])))
    return tuple(failures)


def _start_reconfigurator(
    scenario: Scenario,
    settings: SimulatedReconfiguration,
    profile: LatencyProfile,
    cluster: SimulatedCluster,
    make_instance: Callable[[int], Instance],
) -> None:
    thresholds = scenario.settings.candidates
    specs = place(scenario.instances, settings.gpus_per_node)
    degrees = [tp for tp in profile.tp_degrees if tp <= settings.gpus_per_node]
    planner = Planner(
        nodes=nodes_of(specs, settings.gpus_per_node),
        planning=PlanningSettings(
            thresholds,
            degrees,
            DEFAULTS.batch_sizes,
            DEFAULTS.rps_buffer,
            block_length=scenario.block_length,
            exact_cache=is_exact(scenario.settings.cache),
        ),
        prior=dict(zip(thresholds, scenario.steps.tokens_at(np.array(thresholds)).tolist(), strict=True)),
        cached=scenario.caching,
        solve_s=DEFAULTS.solve_s,
    )
    SimulatedReconfigurator(settings, planner, profile, cluster, make_instance).start(specs)


def _predictor(
    scenario: Scenario, model: UnmaskingTables, workload: ArrivalTrace, random: np.random.Generator
) -> Predictor:
    thresholds = np.array(scenario.settings.candidates)
    if scenario.predictor != "trained":
        return oracle_predictor(model, thresholds, scenario.noise if scenario.predictor == "noisy" else 0.0, random)
    live = scenario.live[0] if scenario.live else train_predictor(model, workload.output_tokens, thresholds, random)
    return trained_predictor(live, thresholds)


def _randoms(seed: int) -> list[np.random.Generator]:
    """Of the difficulties, of the steps and of the predictions."""
    return np.random.default_rng(seed).spawn(3)


def _card(steps: StepsTable) -> PredictorCard:
    """The card of a predictor whose one-shot estimates are those of the steps table."""
    return PredictorCard(
        version="simulated",
        features=[],
        thresholds=steps.thresholds.tolist(),
        tokens_per_step=steps.tokens_per_step.tolist(),
        update_granularity=GRANULARITY,
    )


def _make_instance(scenario: Scenario, profile: LatencyProfile, indices: Iterator[int], tp: int) -> Instance:
    profile.require(tp, cached=scenario.caching)
    return Instance(
        instance_id=f"sim{next(indices)}",
        model=CARD,
        tp_degree=tp,
        device="simulated",
        max_batch_tokens=scenario.max_batch_tokens,
        max_batch_requests=scenario.max_batch_requests,
        profile=(scenario.registered or profile).for_tp(tp).to_csv(),
    )
