"""Whether the simulator predicts the live embedded cluster: the same requests at the same times, the same policy.

    python -m experiments.validate_live --loads 0.4,0.8,1.1

Each load is served live in parts. The cluster is measured in place, in a round before the first part and after every
one (experiments/live_calibration.py): how many tokens steps unmask, how long iterations of all sizes compute, what a
message takes. Times are those of the two rounds beside a part, but for the machine's speed, which changes from minute
to minute: by what share the part's own iterations took longer is told, and charged. The first round also gives the
isolated latency (the SLO is 5 times that) and the rate that a burst is worked off at (a load of 1).

Then the same requests are simulated with that, and nothing else of the loads. The scheduler goes by the profile that
the live instance has registered and asks the same predictor, as it does live; each request unmasks as some request of
the rounds did: of every step of those it is known how many tokens reached which threshold. Wanted: attainment within 5
points, mean latency within 20 %.

Lookahead is off on both sides: the paper's mode. Each output is computed to its end, whatever its text: a simulation
knows of none that ends early. One instance of one thread leaves the services a core of two: that they take cores from
the workers is what the simulator knows nothing of.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from dilaserve.commands.up import DEMO_MODEL
from dilaserve.load.workload import LoadRequest, poisson_arrivals, read_requests
from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.observer import open_observer
from experiments.live_calibration import Served, fit_message_s, fit_profile, fit_steps, serve, serve_in_turn, slower
from experiments.live_cluster import live_cluster
from experiments.live_iterations import BLOCK, CELL, RecordedIteration, canvases, iterations, record
from experiments.machine import environment_header
from services.predictor.model import load_predictor
from services.scheduler.settings import SchedulerSettings
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.scenario import Scenario, simulate
from simulator.trace_replay import Canvas, RecordedRequests
from simulator.workload import ArrivalTrace, plain

RESULT = Path(__file__).parent / "results" / "validate_live.md"
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
SLO_SCALE = 5.0
OUTPUT_TOKENS = 64
TOGETHER = (1, 2, 4, 8, 16)  # requests at a time
EACH = 16  # requests at each threshold, and with so many at a time
BURST = 48  # requests at once
SEEDS = 5  # simulations of each part
PART_S = 20.0  # of arrivals
PATIENT_S = 120.0  # an SLO that is always met
POINTS, SHARE = 5.0, 0.20  # how far off attainment and mean latency may be
HEAD = (
    "| load | requests | attainment live, % | simulated | off, points | mean latency live, s | simulated | off, % "
    "| threshold live | simulated | iterations slower than beside, % | within |\n" + "| --- " * 12 + "|"
)


@dataclass(frozen=True, slots=True)
class LiveSample:
    """One round of measurements."""

    by_threshold: dict[float, list[Served]]
    alone: list[Served]
    recorded: list[list[Canvas]]  # of the same requests as under each threshold, at all of these
    run: list[RecordedIteration]  # of all others
    burst_s: float  # that BURST requests took

    @property
    def slo_s(self) -> float:
        return SLO_SCALE * float(np.mean([one.latency_s for one in self.alone]))


@dataclass(frozen=True, slots=True)
class ValidationRun:
    """One part of a load, live."""

    load: float
    arrivals_s: list[float]
    served: list[Served]
    iterations: list[RecordedIteration]
    beside: slice  # of the rounds: the one before and the one after

    def workload(self) -> ArrivalTrace:
        """The same, for a simulation."""
        prompts = np.array([one.prompt_tokens for one in self.served])
        return plain(np.array(self.arrivals_s), prompts, np.array([one.output_tokens for one in self.served]))


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """Live beside simulated."""

    load: float
    requests: int
    attainment: tuple[float, float]  # 0..1
    latency_s: tuple[float, float]
    threshold: tuple[float, float]
    slower: float  # by what share live iterations computed longer than in the rounds beside

    @property
    def points_off(self) -> float:
        return 100 * (self.attainment[1] - self.attainment[0])

    @property
    def latency_off(self) -> float:
        return self.latency_s[1] / self.latency_s[0] - 1

    @property
    def within(self) -> bool:
        return abs(self.points_off) <= POINTS and abs(self.latency_off) <= SHARE

    def __str__(self) -> str:
        live, simulated = self.attainment
        return (
            f"| {self.load:g} | {self.requests} | {100 * live:.1f} | {100 * simulated:.1f} | {self.points_off:+.1f} "
            f"| {self.latency_s[0]:.3f} | {self.latency_s[1]:.3f} | {100 * self.latency_off:+.1f} "
            f"| {self.threshold[0]:.3f} | {self.threshold[1]:.3f} | {100 * self.slower:+.1f} "
            f"| {'yes' if self.within else 'NO'} |"
        )


async def look(url: str, nats_url: str, rows: list[LoadRequest]) -> LiveSample:
    """One round."""
    async with record(nats_url) as watching:
        by_threshold = {
            # its deadline past, a request takes the lowest threshold that its floor allows
            floor: await serve(url, rows[:EACH], [0.1 * i for i in range(EACH)], 0.001, floor, watched=True)
            for floor in THRESHOLDS
        }
    found = canvases(watching, OUTPUT_TOKENS)
    recorded = [
        [canvas for one in same for canvas in found[one.request_id]]
        for same in zip(*by_threshold.values(), strict=True)
    ]
    async with record(nats_url) as recording:
        in_turn = [await serve_in_turn(url, rows[:EACH], together, PATIENT_S) for together in TOGETHER]
        began_s = time.perf_counter()
        await serve(url, rows[:BURST], [0.0] * BURST, PATIENT_S)
        burst_s = time.perf_counter() - began_s
    return LiveSample(by_threshold, in_turn[0], recorded, iterations(recording.jobs, recording.results), burst_s)


async def registered_profile(url: str, nats_url: str) -> LatencyProfile:
    """What the scheduler is told of the instance: measured by its engine as it started, beside nothing."""
    async with open_observer(url, nats_url, CELL) as observer:
        [instance] = (await observer.report()).instances
    return LatencyProfile.from_csv(instance.profile)


def scenario_of(rounds: Sequence[LiveSample], registered: LatencyProfile, policy: str) -> Scenario:
    """What all rounds have measured, as it is simulated."""
    by_threshold = {floor: [one for seen in rounds for one in seen.by_threshold[floor]] for floor in THRESHOLDS}
    profile, launch_s = fit_profile(_run_in(rounds))
    return Scenario(
        profile=profile,
        registered=registered,
        shared_launch_s=launch_s,
        message_s=_message_s(rounds),
        steps=fit_steps(by_threshold),
        recorded=RecordedRequests([one for seen in rounds for one in seen.recorded], OUTPUT_TOKENS),
        predictor="trained",
        live=load_predictor(DEMO_MODEL / "predictor"),
        instances=(1,),
        settings=msgspec.convert(
            {"model": "demo", "policy": policy, "cache": "dual", "thresholds": THRESHOLDS}, SchedulerSettings
        ),
        slo_s=rounds[0].slo_s,
    )


def timed_as(run: ValidationRun, beside: Sequence[LiveSample], scenario: Scenario) -> tuple[Scenario, float]:
    """The scenario with the times of the rounds beside one part of a load, at the speed that the machine had in it; and
    how much slower that was than in those rounds."""
    measured = _run_in(beside)
    share = slower(run.iterations, *fit_profile(measured))
    profile, launch_s = fit_profile(measured, share)
    return replace(scenario, profile=profile, shared_launch_s=launch_s, message_s=_message_s(beside)), share


def _run_in(rounds: Sequence[LiveSample]) -> list[RecordedIteration]:
    return [iteration for seen in rounds for iteration in seen.run]


def _message_s(rounds: Sequence[LiveSample]) -> float:
    return fit_message_s([one for seen in rounds for one in seen.alone])


async def run_live(
    load: float, url: str, nats_url: str, rows: list[LoadRequest], rounds: list[LiveSample]
) -> ValidationRun:
    """One part of a load."""
    async with record(nats_url) as recording:
        arrivals_s = poisson_arrivals(load * BURST / rounds[0].burst_s, PART_S, seed=len(rounds))
        sent = [rows[number % len(rows)] for number in range(len(arrivals_s))]
        served = await serve(url, sent, arrivals_s, rounds[0].slo_s)
    beside = slice(len(rounds) - 1, len(rounds) + 1)
    return ValidationRun(load, arrivals_s, served, iterations(recording.jobs, recording.results), beside)


def compare(runs: Sequence[ValidationRun], measured: Sequence[tuple[Scenario, float]]) -> LiveComparison:
    """A load's parts as they were served live, beside SEEDS simulations of each."""
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


def told(scenario: Scenario) -> str:
    """What was measured, in words."""
    cache_ms = 1000 * scenario.profile.latency_s(1, np.array([BLOCK, 8 * BLOCK]), StepKind.CACHE)
    recompute_ms = 1000 * scenario.profile.latency_s(1, 3 * BLOCK, StepKind.RECOMPUTE)
    return (
        f"SLO {scenario.slo_s:.2f} s. Tokens by step: {np.round(scenario.steps.tokens_per_step, 2).tolist()} "
        f"at {list(THRESHOLDS)}. A cache step takes {cache_ms[0]:.1f} ms, eight {cache_ms[1]:.1f} ms, a recompute step "
        f"of {3 * BLOCK} tokens {recompute_ms:.1f} ms, a message {1000 * scenario.message_s:.1f} ms."
    )


def main(
    *,
    loads: Annotated[str, typer.Option(help="Of the sustained rate.")] = "0.4,0.8,1.1",
    parts: Annotated[int, typer.Option(min=1, help=f"Of each load, {PART_S:g} s of arrivals each.")] = 2,
    policy: Annotated[str, typer.Option(help="dilaserve, llumnix or infaas.")] = "dilaserve",
    out: Annotated[Path, typer.Option(help="Write the table to this file.")] = RESULT,
) -> None:
    """Print the table, and whether the simulator is near enough."""
    os.environ |= {"DILASERVE_LOOKAHEAD": "0", "DILASERVE_STOP_AT_EOS": "false", "DILASERVE_THREADS": "1"}
    heldout = read_requests(DEMO_MODEL / "heldout.jsonl")
    rows = [msgspec.structs.replace(row, output_tokens=OUTPUT_TOKENS) for row in heldout]
    lines = [f"# The simulator beside the live cluster\n\n{environment_header()}\n"]
    runs: dict[float, list[ValidationRun]] = {float(load): [] for load in loads.split(",")}
    with (
        tempfile.TemporaryDirectory(prefix="dilaserve-") as data_dir,
        live_cluster("--policy", policy, "--instances", "1x1", "--data-dir", data_dir) as url,
    ):
        nats_url = read_addresses(Path(data_dir)).nats_url
        asyncio.run(serve_in_turn(url, rows[:EACH], max(TOGETHER), PATIENT_S))  # warms it up
        registered = asyncio.run(registered_profile(url, nats_url))
        rounds = [asyncio.run(look(url, nats_url, rows))]
        for load in list(runs) * parts:
            runs[load].append(asyncio.run(run_live(load, url, nats_url, rows, rounds)))
            rows = [*rows[BURST:], *rows[:BURST]]  # others in the next round
            rounds.append(asyncio.run(look(url, nats_url, rows)))
    scenario = scenario_of(rounds, registered, policy)
    lines += [f"{policy}, a load of 1 is {BURST / rounds[0].burst_s:.1f} requests/s. {told(scenario)}\n", HEAD]
    for of_load in runs.values():
        lines.append(str(compare(of_load, [timed_as(run, rounds[run.beside], scenario) for run in of_load])))
    print("\n".join(lines))
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
