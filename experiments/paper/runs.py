"""One simulated run: its parameters and its figures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import nan
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.paper.files import DREAM_PROFILE, DREAM_STEPS, PROFILE, STEPS
from experiments.paper.variants import AT_RANDOM, LLUMNIX_WITH_HYSTERESIS, WITH_HYSTERESIS
from experiments.policies.arrivals import arrivals, first_requests
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.registry import DEFAULT_POLICY, PolicyName
from services.scheduler.settings import SchedulerSettings
from shared.arrays import Int64
from shared.instance_counts import read_instance_counts
from shared.profile import read_profile
from simulator.lengths import BENCHMARKS, BLOCK, Lengths, benchmark_lengths, sharegpt_lengths
from simulator.result import summarize
from simulator.scenario import PredictorName, Scenario, simulate
from simulator.steps_table import read_steps
from simulator.unloaded_latency import unloaded_latency_s
from simulator.workload import ArrivalTrace, constant_rate_trace

QUICK_REQUESTS = 2
GSM8K_SHOTS = 5  # examples in the prompts of the data file
SHAREGPT = "sharegpt"  # its lengths, at a constant rate
SHOT_SHARE = 0.182  # share of one example in GSM8K's 5-shot prompt; by characters, mean over questions and answers

System = Literal[
    "DiLaServe", "default policy", "Llumnix", "INFaaS", "with hysteresis", "Llumnix with hysteresis", "at random"
]
# The paper's three, which the studies compare
POLICY: Mapping[System, PolicyName] = {"DiLaServe": "paper", "Llumnix": "llumnix", "INFaaS": "infaas"}
POLICIES: Mapping[System, PolicyName] = {
    **POLICY,
    "default policy": DEFAULT_POLICY,
    "with hysteresis": WITH_HYSTERESIS,
    "Llumnix with hysteresis": LLUMNIX_WITH_HYSTERESIS,
    "at random": AT_RANDOM,
}
Model = Literal["LLaDA", "Dream"]
INPUTS: Mapping[Model, tuple[Path, Path]] = {"LLaDA": (PROFILE, STEPS), "Dream": (DREAM_PROFILE, DREAM_STEPS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun:
    """The defaults are the paper's. Units: rps in requests/s, lengths in tokens."""

    system: System = "DiLaServe"
    model: Model = "LLaDA"
    rps: float
    benchmark: str = "gsm8k"  # or a workload of experiments/policies/arrivals.py; sharegpt: its lengths at one rate
    shots: int = GSM8K_SHOTS  # examples in GSM8K's prompts
    prompt_tokens: int | None = None  # length of every prompt; None: the benchmark's
    output_tokens: int = 256  # of a benchmark's requests
    requests: int | None = 1319  # None: all of the workload
    cluster: str = "16x1"
    cache: bool = True
    load_control: bool = True
    threshold: float = 0.9  # of a policy with one threshold
    margin_steps: float = 0.0  # reserved before the deadline: none, as in the paper
    predictor: PredictorName = "trained"
    moves: MigrationPolicy | None = None  # None: the policy's own
    slo_multiple: float = 5.0  # SLO over the mean latency of a request alone on a TP-1 instance
    seed: int = 0


def shortened(run: SimulationRun) -> SimulationRun:
    """A few requests at one low load, without training a predictor: enough to check the code."""
    predictor = "oracle" if run.predictor == "trained" else run.predictor
    return replace(run, requests=QUICK_REQUESTS, output_tokens=BLOCK, rps=1.0, slo_multiple=5.0, predictor=predictor)


@cache
def figures(run: SimulationRun) -> Mapping[str, float]:
    """The figures of a run, by column of the tables; NaN: the model has no such figure."""
    return {name: nan if value is None else value for name, value in _simulate(run).items()}


def workload(run: SimulationRun) -> ArrivalTrace:
    """The first requests of the workload. A benchmark's come in random order, with Poisson arrivals."""
    random = np.random.default_rng(run.seed)
    if run.benchmark in BENCHMARKS or run.benchmark == SHAREGPT:
        lengths = run_lengths(run)
        copies = -(-(run.requests or 1) // len(lengths.prompt_tokens))
        arriving = constant_rate_trace(lengths, run.rps, random, copies)
    else:
        arriving = arrivals(run.benchmark, run.rps, random)
    return arriving if run.requests is None else first_requests(arriving, run.requests)


def run_lengths(run: SimulationRun) -> Lengths:
    """The benchmark's lengths, with the run's number of examples or fixed length."""
    if run.benchmark == SHAREGPT:
        return sharegpt_lengths()
    of_benchmark = benchmark_lengths(run.benchmark)
    prompts: Int64 = of_benchmark.prompt_tokens
    if run.prompt_tokens is not None:
        prompts = np.full(len(prompts), run.prompt_tokens)
    elif run.shots != GSM8K_SHOTS:
        prompts = np.rint(prompts * (1 - SHOT_SHARE * (GSM8K_SHOTS - run.shots))).astype(np.int64)
    assert run.output_tokens % BLOCK == 0, "outputs are whole blocks"
    return Lengths(prompts, np.full(len(prompts), run.output_tokens), of_benchmark.source)


def _policy_options(run: SimulationRun) -> dict[str, object]:
    """The fields of the policy's class that differ from its defaults."""
    options: dict[str, object] = {} if run.moves is None else {"moves": run.moves}
    return options if run.load_control else {**options, "load_control": False}


def _simulate(run: SimulationRun) -> dict[str, float | None]:
    arriving = workload(run)
    profile_file, steps_file = INPUTS[run.model]
    profile, steps = read_profile(profile_file), read_steps(steps_file)
    slo_s = run.slo_multiple * unloaded_latency_s(arriving, profile, steps, caching=run.cache)
    scenario = Scenario(
        profile=profile,
        steps=steps,
        instances=read_instance_counts(run.cluster, "cluster"),
        settings=SchedulerSettings(
            model="simulated",
            policy=POLICIES[run.system],
            threshold=run.threshold,
            cache="dual" if run.cache else "none",
            margin_steps=run.margin_steps,
        ),
        policy_options=_policy_options(run),
        predictor=run.predictor,
        slo_s=slo_s,
        seed=run.seed,
    )
    records = simulate(scenario, arriving)
    result = summarize(records, arriving)
    accuracy = records.accuracy()
    return {
        "SLO attainment, %": 100 * result["slo_attainment"],
        "accuracy, %": accuracy,
        "mean threshold": result["mean_threshold"],
        "mean latency, s": result["latency_s"]["mean"],
        "P99 latency, s": result["latency_s"]["p99"],
        "mean steps": result["mean_steps"],
        "migrations": result["migrations"],
        "SLO, s": slo_s,
    }
