"""What simulating costs: CPU time and memory by the size of the cluster, with the rate in proportion.

    python -m experiments.simulator_scale --seconds 20
    python -m experiments.simulator_scale --whole

A part of the real-world trace that begins in its busiest hour, served by `dilaserve`: 16 TP-1 instances at a peak of 20
requests a second, and 256 at 320. `--whole` runs the whole trace. Each size is a process of its own.
"""

import multiprocessing
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.machine import environment_header
from experiments.paper.files import PROFILE, ROOT, STEPS
from services.scheduler.settings import SchedulerSettings
from shared.profile import read_profile
from simulator.lengths import DATA, sharegpt
from simulator.scenario import Scenario, simulate
from simulator.steps_table import read_steps
from simulator.workload import DAY, HOUR_S, ArrivalTrace, plain, real_world

RESULT = ROOT / "experiments" / "results" / "simulator_scale.md"
RPS_EACH = 20.0 / 16  # at the peak, for each instance
INSTANCES = (16, 64, 256)
HEAD = "| instances | peak RPS | seconds | requests | steps | cycles | CPU, s | us a step | peak memory, MB |\n" + (
    "| --- " * 9 + "|"
)


@dataclass(frozen=True, slots=True)
class Cost:
    requests: int
    steps: int
    cycles: int
    cpu_s: float
    peak_bytes: int


def busiest(workload: ArrivalTrace, seconds: float) -> ArrivalTrace:
    """What arrives in so many seconds from the start of the busiest hour."""
    start_s = float(DAY.argmax()) * HOUR_S
    part = (workload.arrival_s >= start_s) & (workload.arrival_s < start_s + seconds)
    return plain(workload.arrival_s[part] - start_s, workload.prompt_tokens[part], workload.output_tokens[part])


def measure(instances: int, seconds: float | None) -> Cost:
    """Simulate in this process; `seconds` None: the whole trace."""
    arriving = real_world(sharegpt(DATA), RPS_EACH * instances, np.random.default_rng(0))
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
    return Cost(len(arriving), records.steps_run, records.cycles, cpu_s, peak_bytes)


def line(instances: int, seconds: float | None, cost: Cost) -> str:
    """A row of the table."""
    return (
        f"| {instances} | {RPS_EACH * instances:g} | {f'{seconds:g}' if seconds else 'all'} | {cost.requests:,} "
        f"| {cost.steps:,} | {cost.cycles:,} | {cost.cpu_s:.1f} | {1e6 * cost.cpu_s / cost.steps:.1f} "
        f"| {cost.peak_bytes / 1e6:.0f} |"
    )


def main(
    *,
    instances: Annotated[
        str, typer.Option(help="Sizes of the cluster.", show_default="16,64,256; the whole trace: 16")
    ] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Of arrivals.")] = 20.0,
    whole: Annotated[
        bool, typer.Option("--whole", help="All of the trace; at 256 instances it takes half an hour.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Write the table to this file; rows are added to one that is there.")
    ] = RESULT,
) -> None:
    """Print the table."""
    part = None if whole else seconds
    sizes = [int(size) for size in instances.split(",")] if instances else [16] if whole else INSTANCES
    rows = [environment_header(), "", HEAD]
    print("\n".join(rows), flush=True)
    for size in sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(line(size, part, pool.apply(measure, (size, part))))
        print(rows[-1], flush=True)
    before = f"{out.read_text('utf-8')}\n" if out.exists() else "# What simulating costs\n\n"
    out.write_text(before + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
