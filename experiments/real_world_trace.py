"""The paper's real-world trace on 16 simulated GPUs: the systems, and what reconfiguration gains and costs, there and
at a step of the load.

    python -m experiments.real_world_trace

The trace is one day of BurstGPT's conversations compressed into two hours, with ShareGPT's lengths; the step is from a
low to a high load. The seeds are of no other study: they guided no rule of the planner.
`experiments.policies` compares the policies on the trace.
"""

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from experiments.paper.files import PROFILE, STEPS
from experiments.paper.study import Out, Quick, place
from experiments.policies.arrivals import STEP_S, arrivals, first_requests
from experiments.report import Report, markdown_table
from experiments.standard_errors import mean_difference
from experiments.stored_runs import read_runs, write_runs
from services.scheduler.registry import DEFAULT_POLICY, PolicyName
from services.scheduler.settings import SchedulerSettings
from shared.profile import read_profile
from simulator.plot import draw_timelines, write_figure
from simulator.reconfiguration import SimulatedReconfiguration
from simulator.result import Records, summarize
from simulator.scenario import Scenario, simulate
from simulator.steps_table import read_steps

TRACE, STEP = "trace", "step"  # the workloads, each a study
SEEDS = {TRACE: (10,), STEP: (10, 11, 12, 13, 14)}  # a run of the trace takes 10 to 20 CPU minutes
RESULTS = Path("experiments/results")
LOW_LOAD_S = {TRACE: 45 * 60.0, STEP: STEP_S}  # the paper's low-load period is the trace's first 45 minutes
POLICIES: dict[str, PolicyName] = {"default policy": DEFAULT_POLICY, "DiLaServe": "paper"}
BASELINES: dict[str, PolicyName] = {"INFaaS": "infaas", "Llumnix": "llumnix"}
BASELINE_THRESHOLD = 0.9  # as in the paper
RECONFIGURED = ", reconfigured"
PEAK_RPS = 20.0
QUICK_REQUESTS = 2
MARGIN_STEPS = 0.0  # reserved before the deadline by the policy `paper`: none, as in the paper


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRun:
    """One simulation."""

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


def runs(workload: str, seed: int) -> list[TraceRun]:
    """Each policy without and with reconfiguration; on the trace each baseline, too."""
    baselines = BASELINES if workload == TRACE else {}
    static = [
        TraceRun(system=name, policy=policy, seed=seed, workload=workload)
        for name, policy in (POLICIES | baselines).items()
    ]
    changed = [
        replace(run, system=run.system + RECONFIGURED, reconfigure=True) for run in static if run.system in POLICIES
    ]
    return static + changed


def simulated(run: TraceRun, requests: int | None) -> StudyResult:
    """Simulate the first requests of the workload; None: all."""
    arriving = arrivals(run.workload, PEAK_RPS, np.random.default_rng(run.seed))
    arriving = first_requests(arriving, requests or len(arriving))
    is_baseline = run.policy in BASELINES.values()
    scenario = Scenario(
        profile=read_profile(PROFILE),
        steps=read_steps(STEPS),
        instances=(1,) * 16,
        settings=SchedulerSettings(
            model="simulated",
            policy=run.policy,
            threshold=BASELINE_THRESHOLD if is_baseline else None,
            cache="dual",
            margin_steps=MARGIN_STEPS,
        ),
        reconfiguration=SimulatedReconfiguration() if run.reconfigure else None,
        predictor="one-shot" if is_baseline else "trained",
        seed=run.seed,
    )
    start_s = time.process_time()
    records = simulate(scenario, arriving)
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
    spread = f" ± {error:.2f}" if len(static) > 1 else ""
    faster = [100 * (1 - b.low_load_s / a.low_load_s) for a, b in zip(static, changed, strict=True)]
    return (
        f"reconfiguration changes attainment by {gained:+.2f}{spread} points, and makes the low-load period "
        f"{np.mean(faster):.1f} % faster"
    )


def run(out: Path, workload: str, *, quick: bool, seeds: Sequence[int] = ()) -> None:
    """Run a study below the directory, from the finished runs in its build/paper, and write its report."""
    progress = out / "build" / "paper" / f"real_world_{workload}.json"
    done = {} if quick else read_runs(progress, dict[str, StudyResult]) or {}
    report = Report(f"The real-world trace: {workload}")
    found: dict[str, list[StudyResult]] = {}
    for seed in (seeds or SEEDS[workload])[: 1 if quick else None]:
        for one in runs(workload, seed):
            key = f"{one.system}, seed {seed}"
            if key not in done:
                done[key] = simulated(one, QUICK_REQUESTS if quick else None)
                write_runs(progress, done)
            print(f"{workload}: {key}: {100 * done[key].result['slo_attainment']:.2f} %", file=sys.stderr, flush=True)
            found.setdefault(one.system, []).append(done[key])
    report.add(table(found), by_seed(found), cost_of_reconfiguration(found))
    timelines = {system: outcomes[0].result["timeline"] for system, outcomes in found.items()}
    (out / report_of(workload)).parent.mkdir(parents=True, exist_ok=True)
    write_figure(out / picture_of(workload), draw_timelines(timelines))
    report.write(out / report_of(workload))


def report_of(study: str) -> Path:
    """The file of a study's report, below the directory of the output."""
    return RESULTS / f"real_world_{study}.md"


def picture_of(study: str) -> Path:
    """The file of the timelines of a study's first seed."""
    return report_of(study).with_suffix(".png")


def main(
    *,
    seeds: Annotated[str, typer.Option(help="Random seeds, comma-separated, in place of each study's own.")] = "",
    studies: Annotated[str, typer.Option(help="Studies, comma-separated.")] = ",".join(SEEDS),
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Run the studies, and write the reports and the plots. Runs finished before, in build/paper, are not repeated."""
    names = studies.split(",")
    if unknown := set(names) - SEEDS.keys():
        raise typer.BadParameter(f"no study {', '.join(sorted(unknown))}; accepted: {', '.join(SEEDS)}")
    for name in names:
        given = tuple(map(int, filter(None, seeds.split(","))))
        run(place(quick=quick, out=out), name, quick=quick, seeds=given)


if __name__ == "__main__":
    typer.run(main)
