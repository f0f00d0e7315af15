"""The gain and the cost of reconfiguration on 16 simulated GPUs: the paper's real-world trace, and a step of the load.

    python -m experiments.real_world_trace

The trace is one day of BurstGPT's conversations compressed into two hours, with ShareGPT's lengths; the step is from a
low to a high load. Each finished run is cached in build/paper, so the command can be stopped and restarted, or run in
parts: `--studies`, `--systems`, `--seeds`. The seeds are of no other study: they guided no rule of the planner.
`experiments.policies` compares the policies on the trace.
"""

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from experiments.paper.files import PROFILE, STEPS
from experiments.paper.result_cache import cached
from experiments.policies.arrivals import STEP_S, arrivals
from experiments.report import RESULTS, environment_header, markdown_table
from experiments.standard_errors import mean_difference
from services.scheduler.registry import DEFAULT_POLICY, PolicyName
from services.scheduler.settings import SchedulerSettings
from shared.profile import read_profile
from simulator.lengths import DATA
from simulator.plot import draw_timelines, write_figure
from simulator.reconfiguration import SimulatedReconfiguration
from simulator.result import Records, summarize
from simulator.scenario import Scenario, simulate
from simulator.steps_table import read_steps

TRACE, STEP = "trace", "step"
STUDIES = {"reconfigure": TRACE, "step": STEP}  # their workloads
LOW_LOAD_S = {TRACE: 45 * 60.0, STEP: STEP_S}  # the paper's low-load period is the trace's first 45 minutes
SEEDS = (10, 11, 12, 13, 14)
POLICIES: dict[str, PolicyName] = {"default policy": DEFAULT_POLICY, "DiLaServe": "paper"}
RECONFIGURED = ", reconfigured"
PEAK_RPS = 20.0
MARGIN_STEPS = 0.0  # reserved before the deadline by the policy `paper`: none, as in the paper


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRun:
    """One simulation, and its key in the result cache."""

    system: str
    seed: int
    policy: PolicyName
    workload: str
    reconfigure: bool = False


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    """RESULT.json and the study's own figures. Units: seconds, bytes."""

    result: dict[str, Any]
    slo_s: float
    low_load_s: float  # mean latency of the requests that arrived in the low-load period
    high_load_s: float
    steps: int
    cpu_s: float
    peak_bytes: int


def runs(study: str, seed: int) -> list[TraceRun]:
    """The runs of a study: each policy without and with reconfiguration."""
    static = [
        TraceRun(system=name, policy=policy, seed=seed, workload=STUDIES[study]) for name, policy in POLICIES.items()
    ]
    return static + [replace(run, system=run.system + RECONFIGURED, reconfigure=True) for run in static]


def outcome(run: TraceRun) -> StudyResult:
    """The result of a run, from the cache if it exists."""
    return cached({"study": "real_world_trace", "run": run}, StudyResult, lambda: _simulate(run))


def _simulate(run: TraceRun) -> StudyResult:
    arriving = arrivals(run.workload, PEAK_RPS, np.random.default_rng(run.seed), DATA)
    scenario = Scenario(
        profile=read_profile(PROFILE),
        steps=read_steps(STEPS),
        instances=(1,) * 16,
        settings=SchedulerSettings(model="simulated", policy=run.policy, cache="dual", margin_steps=MARGIN_STEPS),
        reconfiguration=SimulatedReconfiguration() if run.reconfigure else None,
        predictor="trained",
        seed=run.seed,
    )
    start_s = time.process_time()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"{run.system}, seed {run.seed}", total=len(arriving))
        records = simulate(scenario, arriving, lambda count: progress.advance(bar, count))
    low = arriving.arrival_s < LOW_LOAD_S[run.workload]
    return StudyResult(
        result=summarize(records, arriving),
        slo_s=scenario.default_slo_s(arriving),
        low_load_s=_mean_latency_s(records, low),
        high_load_s=_mean_latency_s(records, ~low),
        steps=records.steps_run,
        cpu_s=time.process_time() - start_s,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _mean_latency_s(records: Records, part: np.ndarray) -> float:
    done = records.latency_s[part & records.completed]
    return float(done.mean()) if len(done) else 0.0


def figures(outcomes: Sequence[StudyResult]) -> dict[str, float]:
    """The columns of the table: means over seeds."""
    result = [one.result for one in outcomes]
    return {
        "attainment, %": 100 * float(np.mean([r["slo_attainment"] for r in result])),
        "lowest": 100 * min(r["slo_attainment"] for r in result),
        "highest": 100 * max(r["slo_attainment"] for r in result),
        "mean latency, s": float(np.mean([r["latency_s"]["mean"] for r in result])),
        "low load": float(np.mean([one.low_load_s for one in outcomes])),
        "later": float(np.mean([one.high_load_s for one in outcomes])),
        "P99, s": float(np.mean([r["latency_s"]["p99"] for r in result])),
        "threshold": float(np.mean([r["mean_threshold"] for r in result])),
        "accuracy, %": 100 * float(np.mean([r["accuracy"] for r in result])),
        "SLO, s": float(np.mean([one.slo_s for one in outcomes])),
        "steps, M": float(np.mean([one.steps for one in outcomes])) / 1e6,
        "CPU, s": float(np.mean([one.cpu_s for one in outcomes])),
        "peak, MB": max(one.peak_bytes for one in outcomes) / 1e6,
    }


def table(found: Mapping[str, Sequence[StudyResult]]) -> str:
    """A Markdown table with one row per system."""
    rows = {name: figures(outcomes) for name, outcomes in found.items()}
    return markdown_table(
        ["system", "seeds", *next(iter(rows.values()))],
        (
            [name, len(found[name]), *(f"{value:.3g}" if value < 10 else f"{value:.1f}" for value in row.values())]
            for name, row in rows.items()
        ),
    )


def by_seed(found: Mapping[str, Sequence[StudyResult]]) -> str:
    """The attainment by seed, in the order of the seeds."""
    each = {name: (f"{100 * one.result['slo_attainment']:.2f}" for one in outcomes) for name, outcomes in found.items()}
    return "Attainment by seed, %: " + "; ".join(f"{name} {', '.join(values)}" for name, values in each.items()) + "."


def cost_of_reconfiguration(found: Mapping[str, Sequence[StudyResult]]) -> str:
    """Means over seeds of the differences between the same runs with and without reconfiguration, as a list."""
    pairs = ((name, found.get(name), found.get(name + RECONFIGURED)) for name in POLICIES)
    return "".join(
        f"\n- {name}: {_difference(static, changed)}" for name, static, changed in pairs if static and changed
    )


def _difference(static: Sequence[StudyResult], changed: Sequence[StudyResult]) -> str:
    met_static, met_changed = ([100 * one.result["slo_attainment"] for one in some] for some in (static, changed))
    gained, error = mean_difference(met_changed, met_static)
    faster = [100 * (1 - b.low_load_s / a.low_load_s) for a, b in zip(static, changed, strict=True)]
    return (
        f"reconfiguration changes attainment by {gained:+.2f} ± {error:.2f} points, and makes the low-load period "
        f"{np.mean(faster):.1f} % faster"
    )


def read_report(file: Path) -> dict[str, str]:
    """The sections of the report by study; the text before the first has the key ''."""
    first, *sections = (file.read_text("utf-8") if file.exists() else "# The real-world trace").split("\n## ")
    return {"": first.strip()} | {name: text.strip() for name, _, text in (part.partition("\n") for part in sections)}


def write_report(file: Path, report: Mapping[str, str]) -> None:
    """Write the sections in the order of the studies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = [f"## {name}\n\n{report[name]}" for name in STUDIES if name in report]
    file.write_text("\n\n".join([report[""], *parts]) + "\n", encoding="utf-8")


def main(
    *,
    seeds: Annotated[str, typer.Option(help="Random seeds, comma-separated.")] = ",".join(map(str, SEEDS)),
    only: Annotated[str, typer.Option("--studies", help="Studies, comma-separated; default: all.")] = "",
    systems: Annotated[str, typer.Option(help="Systems, separated by semicolons; default: all.")] = "",
    out: Annotated[Path, typer.Option(help="Directory of the report and the plot.")] = RESULTS,
) -> None:
    """Run the studies, or read their cached runs, and update their sections of the report."""
    write_studies(tuple(map(int, seeds.split(","))), only, systems, out)


def write_studies(seeds: Sequence[int] = SEEDS, only: str = "", systems: str = "", out: Path = RESULTS) -> None:
    """See `main`."""
    file = out / "real_world_trace.md"
    report = read_report(file)
    for name in only.split(",") if only else STUDIES:
        if name not in STUDIES:
            raise typer.BadParameter(f"there is no study {name}; the studies are {', '.join(STUDIES)}")
        found: dict[str, list[StudyResult]] = {}
        for seed in seeds:
            for run in runs(name, seed):
                if not systems or run.system in systems.split(";"):
                    found.setdefault(run.system, []).append(outcome(run))
        if not found:
            raise typer.BadParameter(f"the study {name} has none of the systems {systems}")
        report[name] = f"{environment_header()}\n\n{table(found)}\n\n{by_seed(found)}\n{cost_of_reconfiguration(found)}"
        print(f"{name}\n\n{report[name]}", flush=True)
        write_report(file, report)
        if not systems:
            timelines = {system: outcomes[0].result["timeline"] for system, outcomes in found.items()}
            write_figure(out / f"real_world_trace_{name}.png", draw_timelines(timelines))


if __name__ == "__main__":
    typer.run(main)
