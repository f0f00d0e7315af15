"""`dilaserve simulate`: a cluster in virtual time."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import typer

from dilaserve.load.simulated_runs import SimulatedRun, runs_of, table
from dilaserve.outputs import check_figure, check_file, open_progress, percent, print_rows, shared_rows
from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.options import read_thresholds
from services.scheduler.registry import DEFAULT_POLICY, POLICIES, policies_that
from services.scheduler.settings import SchedulerSettings
from shared.errors import BadInput
from shared.messages.cell import DEFAULT_THRESHOLDS_TEXT
from shared.profile import read_profile
from simulator.lengths import DATA, benchmark_lengths, sharegpt_lengths
from simulator.reconfiguration import SimulatedReconfiguration
from simulator.result import Records, summarize
from simulator.scenario import Scenario, read_failures
from simulator.scenario import simulate as run_simulation
from simulator.steps_table import StepsTable, read_steps
from simulator.workload import ArrivalTrace, constant_rate_trace, read_trace, real_world_trace

if TYPE_CHECKING:
    from dilaserve.load.recorded import RecordedLoad
EXAMPLE = (
    "Example: dilaserve simulate --workload real-world --rps 20 --profile h100-llada8b.csv "
    "--steps steps-llada-gsm8k.csv --cluster 16x1 --policy dilaserve --out result.json --plot timeline.png"
)

PredictorName = Literal["oracle", "noisy", "one-shot", "none", "trained"]
ADAPTIVE, FIXED = policies_that(use_one_threshold=False), policies_that(use_one_threshold=True)
WorkloadName = Literal["real-world", "gsm8k", "mmlu-pro", "mbpp"]


def simulate(
    *,
    trace: Annotated[Path | None, typer.Option(help="Arrivals and lengths (CSV); overrides --workload.")] = None,
    workload: Annotated[WorkloadName, typer.Option(help="Generated workload, if there is no trace.")] = "real-world",
    rps: Annotated[
        float, typer.Option(min=0.001, max=1e5, help="Requests per second of --workload, at its peak.")
    ] = 20.0,
    data: Annotated[Path | None, typer.Option(help="Directory with the workloads' lengths.")] = None,
    profile: Annotated[Path, typer.Option(help="Latency profile (CSV).")],
    from_database: Annotated[
        bool,
        typer.Option("--from-database", help="Simulate the requests that a cell has served, as Postgres has them."),
    ] = False,
    last: Annotated[
        str, typer.Option(help="With --from-database: requests that arrived in this time, as 30m, 1h, 2d.")
    ] = "1h",
    data_dir: Annotated[
        Path, typer.Option(help="With --from-database: data directory of a stack on this machine.")
    ] = Path(".data"),
    database_url: Annotated[
        str | None, typer.Option(help="With --from-database: database URL; default: the stack's.")
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Tokens per step by threshold (CSV).", show_default="with --from-database, the recorded ones"
        ),
    ] = None,
    cluster: Annotated[
        list[str] | None, typer.Option(help="Instances: COUNTxTP[,COUNTxTP...]; repeatable.", show_default="16x1")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"Scheduling policy ({', '.join(POLICIES)}); repeatable.", show_default=DEFAULT_POLICY),
    ] = None,
    thresholds: Annotated[str, typer.Option(help=f"Candidates ({ADAPTIVE}).")] = DEFAULT_THRESHOLDS_TEXT,
    threshold: Annotated[
        list[float] | None, typer.Option(min=0.01, max=1, help=f"Threshold ({FIXED}); repeatable.", show_default="0.9")
    ] = None,
    cache: Annotated[bool, typer.Option(help="Whether instances cache keys and values.")] = True,
    load_control: Annotated[bool, typer.Option(help=f"Whether load limits the thresholds ({ADAPTIVE}).")] = True,
    predictor: Annotated[PredictorName, typer.Option(help="How the step predictor is simulated.")] = "trained",
    noise: Annotated[float, typer.Option(min=0, help="Error of the noisy predictor (of its logarithm).")] = 0.1,
    fail: Annotated[
        list[str] | None, typer.Option(help="AT_S:INSTANCE: an instance (from 0) dies; repeatable.")
    ] = None,
    reconfigure: Annotated[bool, typer.Option("--reconfigure", help="Plan instances every 5 minutes.")] = False,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each node, for --reconfigure.")] = 4,
    load_s: Annotated[float, typer.Option(min=0, help="Seconds to load an instance, for --reconfigure.")] = 60.0,
    shared_launch_ms: Annotated[
        float, typer.Option(min=0, help="Time that an iteration of both step kinds saves, without mixed rows.")
    ] = 0.0,
    slo: Annotated[float | None, typer.Option(min=0.001, help="SLO in seconds; default: 5 x unloaded.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file, as JSON.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a table of all runs to this file (Markdown).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the timeline into this .png or .html.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Serve a workload on a simulated cluster, with the live scheduler, and report the result.

    Several clusters, policies or thresholds are simulated one after the other, each with each.
    """
    check_file("--out", out)
    check_file("--report", report)
    check_figure("--plot", plot)
    candidates = read_thresholds(thresholds)
    runs = runs_of(cluster or ["16x1"], policy or [DEFAULT_POLICY], threshold or [0.9])
    recorded = _recorded(last, data_dir, database_url) if from_database else None
    if recorded is None:
        arriving, source = _workload(trace, workload, rps, data, seed)
    elif trace is None:
        arriving, source = recorded.trace, f"recorded in the last {last}"
    else:
        raise BadInput("give one of --trace TRACE.csv and --from-database")
    scenario = Scenario(
        profile=read_profile(profile),
        steps=_steps(steps, recorded, candidates),
        instances=runs[0].instances,
        settings=SchedulerSettings(model="simulated", thresholds=candidates, cache="dual" if cache else "none"),
        policy_options={"load_control": load_control},
        predictor=predictor,
        failures=read_failures(fail or [], min(len(run.instances) for run in runs)),
        reconfiguration=SimulatedReconfiguration(gpus_per_node=gpus_per_node, load_s=load_s) if reconfigure else None,
        noise=noise,
        slo_s=slo,
        seed=seed,
        shared_launch_s=shared_launch_ms / 1000,
    )
    for run in runs:
        run.result = summarize(_run(run, scenario, arriving), arriving)
    served = None if recorded is None else summarize(recorded.served, arriving)
    is_one = len(runs) == 1 and served is None
    result = runs[0].result if is_one else {"recorded": served, "runs": [run.described for run in runs]}
    title = f"{len(arriving)} requests, {source}"
    comparison = table(runs, served, title)
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    if plot is not None:
        _draw(plot, runs, served, title)
    if report is not None:
        report.write_text(comparison + (f"\n![Timelines]({plot.name})\n" if plot is not None else ""), "utf-8")
    if json:
        typer.echo(msgspec.json.encode(result))
    elif is_one:
        facts = {"lengths": source, "SLO, s": f"{scenario.default_slo_s(arriving):.2f}"}
        accuracy = {"accuracy (by the steps table)": percent(runs[0].result.get("accuracy"))}
        print_rows(facts | shared_rows(runs[0].result) | accuracy)
    else:
        typer.echo(comparison)


def _steps(path: Path | None, recorded: "RecordedLoad | None", thresholds: tuple[float, ...]) -> StepsTable:
    """The tokens per step: those of the file, else the recorded ones. Raises: BadInput if there are none."""
    if path is not None:
        return read_steps(path)
    if recorded is not None:
        return recorded.steps_table(thresholds)
    raise BadInput("give --steps STEPS.csv, the tokens per step by threshold")


def _draw(path: Path, runs: Sequence[SimulatedRun], recorded: Mapping[str, Any] | None, title: str) -> None:
    from simulator.plot import draw_timelines, write_figure  # noqa: PLC0415

    timelines = {} if recorded is None else {"recorded": recorded["timeline"]}
    write_figure(path, draw_timelines(timelines | {run.name: run.result["timeline"] for run in runs}, title))


def _recorded(last: str, data_dir: Path, url: str | None) -> "RecordedLoad":
    """Raises: BadInput if no request is recorded."""
    from dilaserve.load.recorded import read_recorded, read_span_s  # noqa: PLC0415
    from dilaserve.stack.database import in_database  # noqa: PLC0415

    last_s = read_span_s("--last", last)
    return in_database(url or read_addresses(data_dir).database_url, partial(read_recorded, last_s=last_s))


def _workload(
    trace: Path | None, name: WorkloadName, rps: float, data: Path | None, seed: int
) -> tuple[ArrivalTrace, str]:
    if trace is not None:
        return read_trace(trace), str(trace)
    if data is not None and not data.is_dir():
        raise BadInput(f"--data {data}: there is no such directory")
    random = np.random.default_rng(seed)
    if name == "real-world":
        lengths = sharegpt_lengths(data or DATA)
        return real_world_trace(lengths, rps, random), lengths.source
    lengths = benchmark_lengths(name, data or DATA)
    return constant_rate_trace(lengths, rps, random, copies=3 if name == "mbpp" else 1), lengths.source


def _run(run: SimulatedRun, scenario: Scenario, arriving: ArrivalTrace) -> Records:
    with open_progress() as progress:
        bar = progress.add_task(run.name, total=len(arriving))
        return run_simulation(run.scenario(scenario), arriving, lambda count: progress.advance(bar, count))
