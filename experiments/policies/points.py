"""The load points: workload, rate, cost model, and the targets of the policy."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from experiments.policies.arrivals import (
    INFEASIBLE_SLO_S,
    LOOSE_SLO_S,
    PATIENT_SLO_S,
    TIGHT_SLO_S,
    arrivals,
    first_requests,
    with_flood,
    with_mixed_slos,
    with_other_slo,
)
from experiments.policies.served_models import BLOCK_DEMO, LLADA, LLADA_ROOFLINE, ServedModel
from services.scheduler.registry import DEFAULT_POLICY
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.steps_table import StepsTable, read_steps
from simulator.unloaded_latency import SLO_MULTIPLE
from simulator.workload import ArrivalTrace

FULL_SCALE = 16  # instances at which the rates are stated
SHARED_LAUNCH_S = 0.017  # of the main profile: fixed cost of a launch, which a merged iteration pays once
ROOM_TOKENS = 8192  # of one batch, and of the requests on an instance
MANY_ROOM_TOKENS = 16384
FEWER_TOKENS = 0.8  # factor on the tokens per step
POLICY = DEFAULT_POLICY
# Rows of the points at which not all are run, as a run of a trace takes minutes. The accuracy of a constant does not
# depend on the load, so a constant whose accuracy is below the policy's cannot win.
CONSTANTS_AND_PAPER = f"{POLICY},paper*,infaas*,llumnix*"
ALL_CONSTANTS = f"{CONSTANTS_AND_PAPER},{POLICY}-0.[789],*-estimates"
FROM_07 = f"{POLICY},paper*,infaas-0.[789]*,llumnix*"
FROM_08 = f"{POLICY},paper*,infaas-0.[89]*,llumnix*"


@dataclass(frozen=True, slots=True)
class Target:
    """The policy's means over seeds must reach these. Units: percent; seconds."""

    attainment: float
    accuracy: float
    attainment_per_class: float | None = None  # of each class of SLO
    mean_s: float | None = None  # mean latency, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One load point. Units: rps in requests/s of FULL_SCALE instances, for varying rates the highest."""

    name: str
    workload: str
    rps: float
    instances: int = 4
    model: ServedModel = LLADA
    merged: bool = False  # an iteration of both kinds is one launch
    tokens_factor: float = 1.0  # on the steps table
    room_tokens: int = ROOM_TOKENS
    registered_factor: float = 1.0  # on the latencies that the scheduler knows
    copies: int = 1  # of each sample of a benchmark
    requests: int | None = None  # the first of the workload; None: all
    mixed_slos: tuple[float, float] | None = None  # of one half of the requests, and of the other
    other_slo: tuple[float, float] | None = None  # an SLO, and the share of the requests that have it
    flood_rps: float | None = None  # of one key, beside the rate of four others
    estimates_factor: float = 1.0  # on the answers of the step predictor
    bounded: bool = False  # whether the fluid bound stands beside the rows
    target: Target | None = None
    rows: str = "*"  # patterns of the rows that are run, comma-separated

    def arrivals(self, seed: int) -> ArrivalTrace:
        random = np.random.default_rng(seed)
        rps = self.rps * self.instances / FULL_SCALE
        workload = arrivals(self.workload, rps, random, copies=self.copies)
        if self.requests is not None:
            workload = first_requests(workload, self.requests)
        if self.other_slo is not None:
            workload = with_other_slo(workload, *self.other_slo, random)
        if self.flood_rps is not None:
            workload = with_flood(workload, self.flood_rps * self.instances / FULL_SCALE, random)
        return workload if self.mixed_slos is None else with_mixed_slos(workload, self.mixed_slos, random)

    def profile(self) -> LatencyProfile:
        return self.model.latency_profile()

    def registered(self) -> LatencyProfile | None:
        """The profile that instances register; None: that of their iterations."""
        return None if self.registered_factor == 1 else slower(self.profile(), self.registered_factor)

    def steps(self) -> StepsTable:
        return scaled(read_steps(self.model.steps), self.tokens_factor)

    def slo_s(self, workload: ArrivalTrace) -> float:
        """The SLO of requests without their own: SLO_MULTIPLE times the unloaded mean of the model's steps table."""
        return SLO_MULTIPLE * self.model.unloaded_s(workload)

    def shared_launch_s(self) -> float:
        if not self.merged:
            return 0.0
        return SHARED_LAUNCH_S if self.model is LLADA else recompute_intercept_s(self.profile())


def recompute_intercept_s(profile: LatencyProfile, low: int = 1024, high: int = 4096) -> float:
    """The latency of a recompute step of no tokens, on the line through two sizes of batch."""
    low_s, high_s = (profile.latency_s(1, tokens, StepKind.RECOMPUTE) for tokens in (low, high))
    return low_s - low * (high_s - low_s) / (high - low)


def scaled(steps: StepsTable, factor: float) -> StepsTable:
    """The table with `factor` times the tokens per step, at least one."""
    return replace(steps, tokens_per_step=np.maximum(factor * steps.tokens_per_step, 1.0))


def slower(profile: LatencyProfile, factor: float) -> LatencyProfile:
    """The profile with `factor` times the latencies."""
    rows = (
        (tp, int(tokens), kind, factor * latency_s)
        for (tp, kind), curve in profile.curves.items()
        for tokens, latency_s in zip(curve.batch_tokens, curve.latency_s, strict=True)
    )
    return LatencyProfile.from_rows(rows)


BASE = (
    Point(name="trace-10", workload="trace", rps=10, target=Target(99.9, 78.9), rows=FROM_08),
    Point(name="trace-20", workload="trace", rps=20, target=Target(99.6, 77.7), rows=ALL_CONSTANTS),
    Point(name="trace-24", workload="trace", rps=24, target=Target(99.0, 76.7), rows=FROM_07),
    Point(name="step-2-20", workload="step", rps=20, target=Target(98.7, 75.8)),
    Point(name="gsm8k-13", workload="gsm8k", rps=13, target=Target(99.9, 78.4)),
    Point(name="gsm8k-16", workload="gsm8k", rps=16, target=Target(99.8, 76.8)),
    Point(name="gsm8k-19", workload="gsm8k", rps=19, target=Target(99.3, 72.8)),
    Point(name="mmlu-pro-23", workload="mmlu-pro", rps=23, requests=3000, target=Target(99.9, 77.5)),
    Point(name="mmlu-pro-27", workload="mmlu-pro", rps=27, requests=3000, target=Target(99.8, 76.3)),
    Point(name="mbpp-18", workload="mbpp", rps=18, copies=3, target=Target(99.8, 77.4)),
    Point(name="roofline-44", workload="gsm8k", rps=44, copies=2, model=LLADA_ROOFLINE, target=Target(98.8, 73.5)),
    Point(
        name="mixed-slos-16",
        workload="gsm8k",
        rps=16,
        mixed_slos=(TIGHT_SLO_S, LOOSE_SLO_S),
        target=Target(99.0, 76.0, 98.0),
    ),
    Point(name="servegen-20", workload="servegen", rps=20, rows=FROM_07),
    Point(name="mooncake-20", workload="mooncake", rps=20, rows=FROM_07),
)
# Deadlines that cannot be met, more work than fits, one key's flood, patient requests, and a predictor that is wrong by
# two. Few requests and rows, as they take long.
SOME_CONSTANTS = f"{POLICY},paper-margin-0,infaas-0.[579]"
OVERLOAD = Point(
    name="overload-40", workload="gsm8k", rps=40, requests=800, bounded=True, rows=f"{SOME_CONSTANTS},{POLICY}-shed"
)
FLOOD = Point(name="key-flood", workload="gsm8k", rps=10, requests=250, flood_rps=40, bounded=True, rows=SOME_CONSTANTS)
NO_FLOOD = replace(FLOOD, name="key-flood-absent", flood_rps=0, bounded=False, rows=POLICY)
MODERATE = Point(name="gsm8k-10", workload="gsm8k", rps=10, requests=400, rows=SOME_CONSTANTS)
EXTRAORDINARY = (
    replace(MODERATE, name="infeasible-half", other_slo=(INFEASIBLE_SLO_S, 0.5)),
    replace(MODERATE, name="infeasible-all", other_slo=(INFEASIBLE_SLO_S, 1.0)),
    OVERLOAD,
    replace(OVERLOAD, name="overload-40-patient", requests=500, rows=SOME_CONSTANTS, other_slo=(PATIENT_SLO_S, 0.05)),
    FLOOD,
    NO_FLOOD,
    replace(MODERATE, name="mixed-slos-2-30", mixed_slos=(2.0, 30.0), bounded=True),
    replace(MODERATE, name="gsm8k-16-estimates-low", rps=16, requests=800, estimates_factor=0.5),
)
# The rates at which full batches at threshold 0.7 take the same share of the instances' time as at step-2-20, gsm8k-16
# and gsm8k-19
BLOCK_CAUSAL = (
    Point(name="block-demo-step-56", workload="step", rps=56, model=BLOCK_DEMO, rows=CONSTANTS_AND_PAPER),
    Point(name="block-demo-gsm8k-34", workload="gsm8k", rps=34, model=BLOCK_DEMO, rows=CONSTANTS_AND_PAPER),
    Point(name="block-demo-gsm8k-40", workload="gsm8k", rps=40, model=BLOCK_DEMO, rows=CONSTANTS_AND_PAPER),
)
VARIED = ("trace-20", "gsm8k-16", "gsm8k-19", "roofline-44")
MISINFORMED = ("gsm8k-16", "gsm8k-19", "roofline-44", "mixed-slos-16")
WHOLE_TRACE = Point(
    name="whole-trace-20",
    workload="trace",
    rps=20,
    instances=FULL_SCALE,
    target=Target(99.5, 77.9, mean_s=5.6),
    rows=f"{POLICY},paper-margin-0,infaas-0.85,infaas-0.9",
)


def _variants(point: Point) -> tuple[Point, ...]:
    rows = f"{POLICY},infaas-0.[789]*" if point.workload == "trace" else CONSTANTS_AND_PAPER
    return (
        replace(point, name=f"{point.name}-merged", merged=True, target=None, rows=rows),
        replace(point, name=f"{point.name}-fewer-tokens", tokens_factor=FEWER_TOKENS, target=None, rows=rows),
        replace(point, name=f"{point.name}-more-room", room_tokens=MANY_ROOM_TOKENS, target=None, rows=rows),
    )


def _misinformed(point: Point) -> tuple[Point, ...]:
    return (
        replace(point, name=f"{point.name}-profile-slow", registered_factor=2.0, target=None, rows=POLICY),
        replace(point, name=f"{point.name}-profile-fast", registered_factor=0.5, target=None, rows=POLICY),
    )


VARIANTS = tuple(variant for point in BASE if point.name in VARIED for variant in _variants(point))
ROBUSTNESS = {variant: point for point in BASE if point.name in MISINFORMED for variant in _misinformed(point)}
# By point with a wrong profile: the same point with the right one
RIGHT_PROFILE: Mapping[str, str] = {wrong.name: right.name for wrong, right in ROBUSTNESS.items()}
POINTS: Mapping[str, Point] = {
    point.name: point for point in (*BASE, *EXTRAORDINARY, *BLOCK_CAUSAL, *VARIANTS, *ROBUSTNESS, WHOLE_TRACE)
}
QUICK_POINTS = ("step-2-20", "gsm8k-16", "roofline-44")
