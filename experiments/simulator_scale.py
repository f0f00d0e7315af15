"""CPU time and memory of a simulation by the size of the cluster, with the rate in proportion.

    python -m experiments.simulator_scale --seconds 20
    python -m experiments.simulator_scale --whole

The trace is the start of the real-world trace's busiest hour, served by the policy `dilaserve`: 16 TP-1 instances at a
peak of 20 requests/s, up to 256 at 320. `--whole` runs the whole trace. Each size runs in its own process.
"""

import multiprocessing
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.paper.files import PROFILE, STEPS
from experiments.report import RESULTS, Report
from services.scheduler.settings import SchedulerSettings
from shared.profile import read_profile
from simulator.lengths import DATA, sharegpt_lengths
from simulator.scenario import Scenario, simulate
from simulator.steps_table import read_steps
from simulator.workload import DAY, HOUR_S, ArrivalTrace, make_trace, real_world_trace

RPS_PER_INSTANCE = 20.0 / 16  # peak rate
INSTANCES = (16, 64, 256)
COLUMNS = "instances", "peak RPS", "seconds", "requests", "steps", "cycles", "CPU, s", "us per step", "peak memory, MB"


@dataclass(frozen=True, slots=True)
class SimulationCost:
    requests: int
    steps: int
    cycles: int
    cpu_s: float
    peak_bytes: int


def busiest(workload: ArrivalTrace, seconds: float) -> ArrivalTrace:
    """The arrivals in the first `seconds` of the busiest hour."""
    start_s = float(DAY.argmax()) * HOUR_S
    part = (workload.arrival_s >= start_s) & (workload.arrival_s < start_s + seconds)
    return make_trace(workload.arrival_s[part] - start_s, workload.prompt_tokens[part], workload.output_tokens[part])


def measure(instances: int, seconds: float | None) -> SimulationCost:
    """Simulate in this process; with `seconds` None the whole trace."""
    arriving = real_world_trace(sharegpt_lengths(DATA), RPS_PER_INSTANCE * instances, np.random.default_rng(0))
    if seconds is not None:
        arriving = busiest(arriving, seconds)
    scenario = Scenario(
        profile=read_profile(PROFILE),
        steps=read_steps(STEPS),
        instances=(1,) * instances,
        settings=SchedulerSettings(model="simulated", policy="dilaserve", cache="dual"),
    )
    start_s = time.process_time()
    records = simulate(scenario, arriving)
    cpu_s = time.process_time() - start_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return SimulationCost(len(arriving), records.steps_run, records.cycles, cpu_s, peak_bytes)


def main(
    *,
    instances: Annotated[
        str, typer.Option(help="Sizes of the cluster.", show_default="16,64,256; with --whole 16")
    ] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Length of the part that is simulated.")] = 20.0,
    whole: Annotated[
        bool, typer.Option("--whole", help="Simulate the whole trace; at 256 instances this takes half an hour.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Write the report to this file; if it exists, append to it.")] = RESULTS
    / "simulator_scale.md",
) -> None:
    """Print the table."""
    part = None if whole else seconds
    sizes = [int(size) for size in instances.split(",")] if instances else [16] if whole else INSTANCES
    report = Report("Cost of a simulation")
    report.add_columns(*COLUMNS)
    for size in sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cost = pool.apply(measure, (size, part))
        seconds_shown = f"{part:g}" if part else "all"
        report.add_row(
            *f"{size} {RPS_PER_INSTANCE * size:g} {seconds_shown} {cost.requests:,} {cost.steps:,} {cost.cycles:,} "
            f"{cost.cpu_s:.1f} {1e6 * cost.cpu_s / cost.steps:.1f} {cost.peak_bytes / 1e6:.0f}".split()
        )
    report.write(out, append=True)


if __name__ == "__main__":
    typer.run(main)
