"""Whether the simulator predicts the live embedded cluster: the same requests at the same times, the same policy.

    python -m experiments.validate_live --loads 0.4,0.8,1.1 --duration 30

The cluster is first measured in place (experiments/live_calibration.py): tokens by step at each threshold, how long
iterations compute, what a message takes, the isolated latency (the SLO is 5 times that), the rate that it works off a
burst at (a load of 1). Then each load is run live, and simulated. Wanted: attainment within 5 points, mean latency
within 20 %.
Lookahead is off on both sides: the paper's mode. One instance of one thread leaves the services a core of two: that
they take cores from the workers is what the simulator knows nothing of.
"""

import asyncio
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from dilaserve.commands.up import DEMO_MODEL
from dilaserve.load.workload import LoadRequest, poisson_arrivals, read_requests
from dilaserve.stack.data_dir import read_addresses
from experiments.live_calibration import Served, fit_message_s, fit_profile, fit_steps, serve
from experiments.live_cluster import live_cluster
from experiments.live_iterations import BLOCK, iterations, record
from experiments.machine import said_first
from services.scheduler.settings import SchedulerSettings
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.scenario import Scenario, simulate
from simulator.steps_table import StepsTable
from simulator.workload import plain

RESULT = Path(__file__).parent / "results" / "validate_live.md"
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
SLO_SCALE = 5.0
EACH = 48  # requests at each threshold, one after another, and at once
PATIENT_S = 120.0  # an SLO that is always met
POINTS, SHARE = 5.0, 0.20  # how far off attainment and mean latency may be
HEAD = (
    "| load | requests | attainment live, % | simulated | off, points | mean latency live, s | simulated | off, % "
    "| threshold live | simulated | within |\n" + "| --- " * 11 + "|"
)


@dataclass(frozen=True, slots=True)
class Measured:
    profile: LatencyProfile
    message_s: float
    steps: StepsTable
    slo_s: float
    sustained_rps: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Live beside simulated."""

    load: float
    requests: int
    attainment: tuple[float, float]  # 0..1
    latency_s: tuple[float, float]
    threshold: tuple[float, float]

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
            f"| {self.threshold[0]:.3f} | {self.threshold[1]:.3f} | {'yes' if self.within else 'NO'} |"
        )


async def calibrate(url: str, nats_url: str, rows: list[LoadRequest]) -> Measured:
    """What the simulator must know of the cluster."""
    await serve(url, rows[:8], [0.0] * 8, PATIENT_S)  # warms it up
    async with record(nats_url) as recording:
        by_threshold = {
            # its deadline past, a request takes the lowest threshold that its floor allows
            floor: await serve(url, rows[:EACH], [0.1 * i for i in range(EACH)], 0.001, floor)
            for floor in THRESHOLDS
        }
        alone = [one for row in rows[:EACH] for one in await serve(url, [row], [0.0], PATIENT_S)]
        began_s = time.perf_counter()
        await serve(url, rows[:EACH], [0.0] * EACH, PATIENT_S)
        sustained_rps = EACH / (time.perf_counter() - began_s)
    return Measured(
        profile=fit_profile(iterations(recording.jobs, recording.results)),
        message_s=fit_message_s(alone),
        steps=fit_steps(by_threshold),
        slo_s=SLO_SCALE * float(np.mean([one.latency_s for one in alone])),
        sustained_rps=sustained_rps,
    )


def predict(
    measured: Measured, served: list[Served], arrivals_s: list[float], policy: str
) -> tuple[float, float, float]:
    """Attainment, mean latency in seconds and mean threshold of the same requests, simulated."""
    scenario = Scenario(
        profile=measured.profile,
        steps=measured.steps,
        instances=(1,),
        settings=msgspec.convert(
            {"model": "demo", "policy": policy, "cache": "dual", "thresholds": THRESHOLDS}, SchedulerSettings
        ),
        slo_s=measured.slo_s,
        message_s=measured.message_s,
    )
    prompts, outputs = (np.array([getattr(one, name) for one in served]) for name in ("prompt_tokens", "output_tokens"))
    records = simulate(scenario, plain(np.array(arrivals_s), prompts, outputs))
    return float(records.met.mean()), float(np.nanmean(records.latency_s)), records.mean_threshold_used() or 0.0


def compare(
    url: str, rows: list[LoadRequest], measured: Measured, load: float, duration_s: float, policy: str
) -> Compared:
    """One load, live and simulated."""
    arrivals_s = poisson_arrivals(load * measured.sustained_rps, duration_s, seed=1)
    sent = [rows[number % len(rows)] for number in range(len(arrivals_s))]
    served = asyncio.run(serve(url, sent, arrivals_s, measured.slo_s))
    attainment, latency_s, threshold = predict(measured, served, arrivals_s, policy)
    weights = [one.output_tokens for one in served]
    return Compared(
        load,
        len(served),
        (float(np.mean([one.slo_met for one in served])), attainment),
        (float(np.mean([one.latency_s for one in served])), latency_s),
        (float(np.average([one.mean_threshold for one in served], weights=weights)), threshold),
    )


def told(profile: LatencyProfile) -> str:
    """The profile in words."""
    cache_ms = 1000 * profile.latency_s(1, np.array([BLOCK, 8 * BLOCK]), StepKind.CACHE)
    recompute_ms = 1000 * profile.latency_s(1, 2 * BLOCK, StepKind.RECOMPUTE)
    return (
        f"a cache step {cache_ms[0]:.1f} ms, eight {cache_ms[1]:.1f}, a recompute step of 64 tokens {recompute_ms:.1f}"
    )


def main(
    *,
    loads: Annotated[str, typer.Option(help="Of the sustained rate.")] = "0.4,0.8,1.1",
    duration: Annotated[float, typer.Option(min=1, help="Seconds of arrivals at each load.")] = 30.0,
    policy: Annotated[str, typer.Option(help="dilaserve, llumnix or infaas.")] = "dilaserve",
    out: Annotated[Path, typer.Option(help="Write the table to this file.")] = RESULT,
) -> None:
    """Print the table, and whether the simulator is near enough."""
    os.environ |= {"DILASERVE_LOOKAHEAD": "0", "DILASERVE_THREADS": "1"}
    heldout = read_requests(DEMO_MODEL / "heldout.jsonl")
    rows = [msgspec.structs.replace(row, output_tokens=64) for row in heldout]
    with (
        tempfile.TemporaryDirectory(prefix="dilaserve-") as data_dir,
        live_cluster("--policy", policy, "--instances", "1x1", "--data-dir", data_dir) as url,
    ):
        measured = asyncio.run(calibrate(url, read_addresses(Path(data_dir)).nats_url, rows))
        lines = [
            f"# The simulator beside the live cluster\n\n{said_first()}\n",
            f"{policy}, SLO {measured.slo_s:.2f} s, a load of 1 is {measured.sustained_rps:.1f} requests/s. "
            f"Tokens by step: {np.round(measured.steps.tokens_per_step, 2).tolist()} at {list(THRESHOLDS)}. "
            f"A message takes {1000 * measured.message_s:.1f} ms, {told(measured.profile)}.\n",
            HEAD,
        ]
        print("\n".join(lines), flush=True)
        for load in loads.split(","):
            lines.append(str(compare(url, rows, measured, float(load), duration, policy)))
            print(lines[-1], flush=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
