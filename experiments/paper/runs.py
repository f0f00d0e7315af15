"""One simulated run: its parameters and its figures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from experiments.paper.files import PROFILE, STEPS
from experiments.paper.result_cache import cached
from services.scheduler.policies import MigrationPolicy
from services.scheduler.registry import PolicyName
from services.scheduler.settings import SchedulerSettings
from shared.arrays import Int64
from shared.instance_counts import read_instance_counts
from shared.profile import read_profile
from simulator.lengths import BLOCK, DATA, Lengths, benchmark_lengths
from simulator.result import summarize
from simulator.scenario import PredictorName, Scenario, simulate
from simulator.steps_table import read_steps
from simulator.unloaded_latency import unloaded_latency_s
from simulator.workload import ArrivalTrace, constant_rate_trace, make_trace

GSM8K_SHOTS = 5  # examples in the prompts of the data file
SHOT_SHARE = 0.182  # share of one example in GSM8K's 5-shot prompt; by characters, mean over questions and answers

System = Literal["DiLaServe", "Llumnix", "INFaaS"]
POLICY: Mapping[System, PolicyName] = {"DiLaServe": "paper", "Llumnix": "llumnix", "INFaaS": "infaas"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun:
    """The defaults are the paper's. Units: rps in requests/s, lengths in tokens."""

    system: System = "DiLaServe"
    rps: float
    benchmark: str = "gsm8k"
    shots: int = GSM8K_SHOTS  # examples in GSM8K's prompts
    prompt_tokens: int | None = None  # length of every prompt; None: the benchmark's
    output_tokens: int = 256
    requests: int = 1319
    cluster: str = "16x1"
    cache: bool = True
    load_control: bool = True
    margin_steps: float = 0.0  # reserved before the deadline: none, as in the paper
    predictor: PredictorName = "trained"
    moves: MigrationPolicy | None = None  # None: the policy's own
    slo_multiple: float = 5.0  # SLO over the mean latency of a request alone on a TP-1 instance
    seed: int = 0


def figures(run: SimulationRun) -> Mapping[str, float]:
    """The figures of a run, by column of the tables."""
    named = replace(run, rps=float(run.rps), slo_multiple=float(run.slo_multiple))  # 5 is 5.0
    return cached(named, dict[str, float], lambda: _simulate(run))


def workload(run: SimulationRun) -> ArrivalTrace:
    """The run's number of the benchmark's requests in random order, with Poisson arrivals."""
    lengths = run_lengths(run)
    random = np.random.default_rng(run.seed)
    copies = -(-run.requests // len(lengths.prompt_tokens))
    arriving = constant_rate_trace(lengths, run.rps, random, copies)
    part = slice(run.requests)
    return make_trace(arriving.arrival_s[part], arriving.prompt_tokens[part], arriving.output_tokens[part])


def run_lengths(run: SimulationRun) -> Lengths:
    """The benchmark's lengths, with the run's number of examples or fixed length."""
    of_benchmark = benchmark_lengths(run.benchmark, DATA)
    prompts: Int64 = of_benchmark.prompt_tokens
    if run.prompt_tokens is not None:
        prompts = np.full(len(prompts), run.prompt_tokens)
    elif run.shots != GSM8K_SHOTS:
        prompts = np.rint(prompts * (1 - SHOT_SHARE * (GSM8K_SHOTS - run.shots))).astype(np.int64)
    assert run.output_tokens % BLOCK == 0, "outputs are whole blocks"
    return Lengths(prompts, np.full(len(prompts), run.output_tokens), of_benchmark.source)


def _simulate(run: SimulationRun) -> dict[str, float]:
    arriving = workload(run)
    profile, steps = read_profile(PROFILE), read_steps(STEPS)
    slo_s = run.slo_multiple * unloaded_latency_s(arriving, profile, steps, caching=run.cache)
    scenario = Scenario(
        profile=profile,
        steps=steps,
        instances=read_instance_counts(run.cluster, "cluster"),
        settings=SchedulerSettings(
            model="simulated",
            policy=POLICY[run.system],
            cache="dual" if run.cache else "none",
            load_control=run.load_control,
            margin_steps=run.margin_steps,
            moves=run.moves,
        ),
        predictor=run.predictor,
        slo_s=slo_s,
        seed=run.seed,
    )
    records = simulate(scenario, arriving)
    result = summarize(records, arriving)
    return {
        "SLO attainment, %": 100 * result["slo_attainment"],
        "accuracy, %": 100 * result["accuracy"],
        "mean threshold": result["mean_threshold"],
        "mean latency, s": result["latency_s"]["mean"],
        "P99 latency, s": result["latency_s"]["p99"],
        "mean steps": result["mean_steps"],
        "migrations": result["migrations"],
        "SLO, s": slo_s,
    }
