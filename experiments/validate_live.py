"""Compare the simulator with the live embedded cluster: the same requests at the same times, the same policy.

    python -m experiments.validate_live

Each load is served live in parts. The cluster is calibrated in a round before the first part and after each part
(experiments/live_calibration.py): tokens that steps unmask, computing time of iterations of all sizes, time of a
message. A part is simulated with the times of the two rounds around it. The machine's speed changes from minute to
minute, so these times are scaled by the share by which the part's own iterations took longer; the report has that
share. The first round also gives the isolated latency (the SLO is 5 times that) and the rate at which a burst is
completed (a load of 1).

The simulation uses nothing else of the live loads. As in the live cluster, the scheduler uses the profile that the
instance registered, and the same predictor. Each request unmasks like a recorded request of the rounds: for each step
of these, the number of tokens that reached each threshold is known. The rounds and the loads have different halves of
the problems from which the predictor did not learn, and the loads are not those at which the simulator was built.
Targets: attainment within 5 points, mean latency within 10 %.

Lookahead is off on both sides, as in the paper. Each output is computed to its end, because the simulator has no text
that could end early. One instance with one thread leaves one of two cores to the services, because the simulator does
not model that they compete with the workers for cores.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from dilaserve.load.workload import LoadRequest, poisson_arrivals
from dilaserve.stack.observer import open_observer
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.live_calibration import ServedRequest, fit_message_s, fit_profile, fit_steps, serve, serve_loop, slower
from experiments.live_cluster import CELL, LiveCluster, live_cluster, unlearnt_requests
from experiments.live_iterations import BLOCK, RecordedIteration, canvases, iterations, record
from experiments.report import RESULTS, Report
from services.predictor.model import load_predictor
from services.scheduler.registry import DEFAULT_POLICY, PolicyName
from services.scheduler.settings import SchedulerSettings
from shared.messages.instances import Instance
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.scenario import Scenario, simulate
from simulator.trace_replay import Canvas, ReplayModel
from simulator.workload import ArrivalTrace, make_trace

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
SLO_SCALE = 5.0
OUTPUT_TOKENS = 64
CONCURRENCY = (1, 2, 4, 8, 16)  # requests at a time
ROUND_REQUESTS = 16  # at each threshold, and at each concurrency
BURST_REQUESTS = 48  # sent at once
SEEDS = 5  # simulations of each part
PART_S = 20.0  # duration of a part's arrivals
LOOSE_SLO_S = 120.0  # always met
MAX_POINTS_OFF, MAX_LATENCY_OFF = 5.0, 0.10  # targets: attainment in points, mean latency as a share
COLUMNS = (
    *("load", "requests", "attainment live, %", "simulated", "off, points", "mean latency live, s", "simulated"),
    *("off, %", "threshold live", "simulated", "iterations slower than in calibration, %", "within"),
)


@dataclass(frozen=True, slots=True)
class CalibrationRound:
    by_threshold: dict[float, list[ServedRequest]]
    alone: list[ServedRequest]
    recorded: list[list[Canvas]]  # canvases by request of `by_threshold`, at all thresholds
    run: list[RecordedIteration]  # iterations of the other requests
    burst_s: float  # time until the burst was completed

    @property
    def slo_s(self) -> float:
        return SLO_SCALE * float(np.mean([one.latency_s for one in self.alone]))


@dataclass(frozen=True, slots=True)
class ValidationRun:
    """One part of a load, served live."""

    load: float
    arrivals_s: list[float]
    served: list[ServedRequest]
    iterations: list[RecordedIteration]
    rounds: slice  # the rounds before and after

    def workload(self) -> ArrivalTrace:
        """The same requests, for a simulation."""
        prompts = np.array([one.prompt_tokens for one in self.served])
        return make_trace(np.array(self.arrivals_s), prompts, np.array([one.output_tokens for one in self.served]))


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """Pairs are (live, simulated)."""

    load: float
    requests: int
    attainment: tuple[float, float]  # 0..1
    latency_s: tuple[float, float]
    threshold: tuple[float, float]
    slower: float  # share by which live iterations took longer than in the rounds around them

    @property
    def points_off(self) -> float:
        return 100 * (self.attainment[1] - self.attainment[0])

    @property
    def latency_off(self) -> float:
        return self.latency_s[1] / self.latency_s[0] - 1

    @property
    def within(self) -> bool:
        return abs(self.points_off) <= MAX_POINTS_OFF and abs(self.latency_off) <= MAX_LATENCY_OFF

    def cells(self) -> list[str]:
        """The cells of its row."""
        (live, simulated), (live_s, simulated_s), thresholds = self.attainment, self.latency_s, self.threshold
        return (
            f"{self.load:g} {self.requests} {100 * live:.1f} {100 * simulated:.1f} {self.points_off:+.1f} "
            f"{live_s:.3f} {simulated_s:.3f} {100 * self.latency_off:+.1f} {thresholds[0]:.3f} {thresholds[1]:.3f} "
            f"{100 * self.slower:+.1f} {'yes' if self.within else 'NO'}"
        ).split()


async def calibrate(cluster: LiveCluster, rows: list[LoadRequest]) -> CalibrationRound:
    sample = rows[:ROUND_REQUESTS]
    async with record(cluster.nats_url) as watched:
        by_threshold = {
            # past its deadline a request gets its quality floor as threshold
            floor: await serve(cluster.url, sample, [0.1 * i for i in range(len(sample))], 0.001, floor, watched=True)
            for floor in THRESHOLDS
        }
    found = canvases(watched, OUTPUT_TOKENS)
    recorded = [
        [canvas for one in same for canvas in found[one.request_id]]
        for same in zip(*by_threshold.values(), strict=True)
    ]
    async with record(cluster.nats_url) as recording:
        in_turn = [await serve_loop(cluster.url, sample, concurrency, LOOSE_SLO_S) for concurrency in CONCURRENCY]
        began_s = time.perf_counter()
        await serve(cluster.url, rows[:BURST_REQUESTS], [0.0] * BURST_REQUESTS, LOOSE_SLO_S)
        burst_s = time.perf_counter() - began_s
    return CalibrationRound(by_threshold, in_turn[0], recorded, iterations(recording.jobs, recording.results), burst_s)


async def registered_instance(cluster: LiveCluster) -> Instance:
    """Its registration, with the profile that its engine measured at the start without other load."""
    async with open_observer(cluster.url, cluster.nats_url, CELL) as observer:
        [instance] = (await observer.report()).instances
    return instance


def scenario_of(rounds: Sequence[CalibrationRound], registered: LatencyProfile, policy: str) -> Scenario:
    """The scenario with the measurements of all rounds."""
    by_threshold = {
        floor: [one for calibration in rounds for one in calibration.by_threshold[floor]] for floor in THRESHOLDS
    }
    profile, launch_s = fit_profile(_run_in(rounds))
    return Scenario(
        profile=profile,
        registered=registered,
        shared_launch_s=launch_s,
        message_s=_message_s(rounds),
        steps=fit_steps(by_threshold),
        replay=ReplayModel([one for calibration in rounds for one in calibration.recorded], OUTPUT_TOKENS),
        predictor="trained",
        live=load_predictor(DEMO_MODEL / "predictor"),
        instances=(1,),
        settings=msgspec.convert(
            {"model": "demo", "policy": policy, "cache": "dual", "thresholds": THRESHOLDS}, SchedulerSettings
        ),
        slo_s=rounds[0].slo_s,
    )


def timed_as(run: ValidationRun, rounds: Sequence[CalibrationRound], scenario: Scenario) -> tuple[Scenario, float]:
    """The scenario with the times of the rounds around one part of a load, scaled to the machine's speed in that part.

    Returns: it, and the share by which the part was slower than the rounds.
    """
    measured = _run_in(rounds)
    share = slower(run.iterations, *fit_profile(measured))
    profile, launch_s = fit_profile(measured, share)
    return replace(scenario, profile=profile, shared_launch_s=launch_s, message_s=_message_s(rounds)), share


def _run_in(rounds: Sequence[CalibrationRound]) -> list[RecordedIteration]:
    return [iteration for calibration in rounds for iteration in calibration.run]


def _message_s(rounds: Sequence[CalibrationRound]) -> float:
    return fit_message_s([one for calibration in rounds for one in calibration.alone])


async def run_live(
    load: float, cluster: LiveCluster, rows: list[LoadRequest], rounds: list[CalibrationRound]
) -> ValidationRun:
    """Serve one part of a load."""
    async with record(cluster.nats_url) as recording:
        arrivals_s = poisson_arrivals(load * BURST_REQUESTS / rounds[0].burst_s, PART_S, seed=len(rounds))
        sent = [rows[number % len(rows)] for number in range(len(arrivals_s))]
        served = await serve(cluster.url, sent, arrivals_s, rounds[0].slo_s)
    around = slice(len(rounds) - 1, len(rounds) + 1)
    return ValidationRun(load, arrivals_s, served, iterations(recording.jobs, recording.results), around)


def compare(runs: Sequence[ValidationRun], measured: Sequence[tuple[Scenario, float]]) -> LiveComparison:
    """Compare the parts of a load with SEEDS simulations of each."""
    served = [one for run in runs for one in run.served]
    simulated = [
        simulate(replace(scenario, seed=seed), run.workload())
        for run, (scenario, _) in zip(runs, measured, strict=True)
        for seed in range(SEEDS)
    ]
    met, latency_s = (np.concatenate([getattr(one, name) for one in simulated]) for name in ("met", "latency_s"))
    return LiveComparison(
        load=runs[0].load,
        requests=len(served),
        attainment=(_mean(one.slo_met for one in served), float(met.mean())),
        latency_s=(_mean(one.latency_s for one in served), float(np.nanmean(latency_s))),
        threshold=(
            _mean(one.mean_threshold for one in served),
            _mean(one.mean_threshold_used() or 0.0 for one in simulated),
        ),
        slower=_mean(share for _, share in measured),
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def calibration_text(scenario: Scenario) -> str:
    cache_ms = 1000 * scenario.profile.latency_s(1, np.array([BLOCK, 8 * BLOCK]), StepKind.CACHE)
    recompute_ms = 1000 * scenario.profile.latency_s(1, 3 * BLOCK, StepKind.RECOMPUTE)
    return (
        f"SLO {scenario.slo_s:.2f} s. Tokens per step: {np.round(scenario.steps.tokens_per_step, 2).tolist()} "
        f"at {list(THRESHOLDS)}. A cache step takes {cache_ms[0]:.1f} ms, eight {cache_ms[1]:.1f} ms, a recompute step "
        f"of {3 * BLOCK} tokens {recompute_ms:.1f} ms, a message {1000 * scenario.message_s:.1f} ms."
    )


def main(
    *,
    loads: Annotated[str, typer.Option(help="Shares of the sustained rate.")] = "0.5,0.7,0.95",
    parts: Annotated[int, typer.Option(min=1, help=f"Parts of each load, {PART_S:g} s of arrivals each.")] = 2,
    policy: Annotated[PolicyName, typer.Option(help="As of `dilaserve up`.")] = DEFAULT_POLICY,
    out: Annotated[Path, typer.Option(help="File of the report.")] = RESULTS / "validate_live.md",
) -> None:
    """Print the table, and whether the simulator meets the targets."""
    os.environ |= {"DILASERVE_LOOKAHEAD": "0", "DILASERVE_STOP_AT_EOS": "false", "DILASERVE_THREADS": "1"}
    rows = unlearnt_requests(OUTPUT_TOKENS)
    rows, served = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    report = Report("The simulator against the live cluster")
    runs: dict[float, list[ValidationRun]] = {float(load): [] for load in loads.split(",")}
    with live_cluster("--policy", policy, "--instances", "1x1") as cluster:
        asyncio.run(serve_loop(cluster.url, rows[:ROUND_REQUESTS], max(CONCURRENCY), LOOSE_SLO_S))  # warm-up
        registered = LatencyProfile.from_csv(asyncio.run(registered_instance(cluster)).profile)
        rounds = [asyncio.run(calibrate(cluster, rows))]
        for load in list(runs) * parts:
            runs[load].append(asyncio.run(run_live(load, cluster, served, rounds)))
            rows = [*rows[BURST_REQUESTS:], *rows[:BURST_REQUESTS]]  # others in the next round
            rounds.append(asyncio.run(calibrate(cluster, rows)))
    scenario = scenario_of(rounds, registered, policy)
    report.add(
        f"{policy}, a load of 1 is {BURST_REQUESTS / rounds[0].burst_s:.1f} requests/s. {calibration_text(scenario)}"
    )
    report.add_columns(*COLUMNS)
    for of_load in runs.values():
        report.add_row(*compare(of_load, [timed_as(run, rounds[run.rounds], scenario) for run in of_load]).cells())
    report.write(out)


if __name__ == "__main__":
    typer.run(main)
