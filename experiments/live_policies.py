"""The default policy, constant thresholds and the paper's policy on live clusters, under Poisson load over HTTP.

python -m experiments.live_policies

Each row has a cluster of its own, one instance of the demo model with one thread. All clusters run throughout; an idle
one takes 3 % of a core. The latency profile is measured first, as by `dilaserve profile`. The SLO is 5 times the
isolated latency: the latency at a constant 0.9 of requests that are alone on the cluster. A load of 1 is the rate at
which the cluster completes a burst at a constant 0.9. The prompts are the held-out problems from which the step
predictor did not learn. In run n of a load, every row gets the same prompts at the same times, one row after another;
the order of the rows rotates from run to run. Each load has at least 5 runs, and more until each standard error is at
most 1.5 points or the time is used.

A constant wins at a load if it is more than two standard errors better in one measure and not as much worse in the
other. The errors are those of the differences between the same runs.

It needs a quiet machine: 5 runs take about 35 minutes on two cores. Stored runs are not repeated, so that it can be
interrupted, and one load can be run by option. The candidate thresholds are the range of the constants: exact match
falls steeply below 0.7 (models/demo/README.md).
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from dilaserve.load.client import LoadReply, run_load
from dilaserve.load.summary import summarize
from dilaserve.load.workload import LoadRequest, RequestLoad, poisson_arrivals
from experiments.live_cluster import LiveCluster, measure_profile, one_instance, unlearnt_requests
from experiments.live_policies_report import HIGHEST, ROWS, SLO_SCALE, LoadRun, PolicyResults, measures, write_report
from experiments.report import RESULTS
from experiments.standard_errors import mean_and_error
from experiments.stored_runs import read_runs, write_runs

STORE = RESULTS / "live_policies.json"
PROFILE = RESULTS / "live_policies_profile.csv"
OUTPUT_TOKENS = 64
ISOLATED_REQUESTS = 30  # measure the isolated latency
BURST_REQUESTS = 150  # sent at once, to measure the sustained rate
MIN_RUNS, MAX_ERROR = 5, 0.015  # of each load; standard error of each row's measures
LOOSE_SLO_S = 60.0  # always met


def main(
    *,
    loads: Annotated[str, typer.Option(help="Shares of the sustained rate.")] = "0.4,0.85,1.0,1.1",
    duration: Annotated[float, typer.Option(help="Seconds of arrivals of a run.")] = 15.0,
    minutes: Annotated[float, typer.Option(help="Start no run after this time.")] = 40.0,
    quick: Annotated[bool, typer.Option("--quick", help="Two runs of 8 s at each load: eight minutes.")] = False,
    afresh: Annotated[bool, typer.Option("--afresh", help="Discard the stored runs.")] = False,
    out: Annotated[Path, typer.Option(help="File of the stored runs; report and plot are beside it.")] = STORE,
) -> None:
    """Print the table and the verdict, and write them with a plot."""
    duration, min_runs = (8.0, 2) if quick else (duration, MIN_RUNS)
    wanted = [float(load) for load in loads.split(",")]
    began_s, results = time.monotonic(), None if afresh else read_runs(out, PolicyResults)
    if results is not None and results.duration_s != duration:
        results = None
    if results is None or any(lacks_runs(results, load, min_runs) for load in wanted):
        rows = unlearnt_requests(OUTPUT_TOKENS)
        if results is None or not PROFILE.exists():
            measure_profile(PROFILE)
        with ExitStack() as stack:
            clusters = {row: stack.enter_context(start(*of_row)) for row, of_row in ROWS.items()}
            for cluster in clusters.values():
                send(cluster, rows, poisson_arrivals(4, 5, seed=99), LOOSE_SLO_S)
            results = results or calibrate(clusters[HIGHEST], rows, duration)
            before = results.minutes

            def save() -> None:
                results.minutes = before + (time.monotonic() - began_s) / 60
                write_runs(out, results)

            save()
            end_s = began_s + 60 * minutes
            measure(results, clusters, rows, wanted, min_runs, lambda: time.monotonic() > end_s, save)
    write_report(results, wanted, out)


def start(policy: str, thresholds: str) -> AbstractContextManager[LiveCluster]:
    return one_instance("--policy", policy, "--thresholds", thresholds, "--profile", PROFILE)


def calibrate(cluster: LiveCluster, rows: Sequence[LoadRequest], duration_s: float) -> PolicyResults:
    """Measure the SLO and the rate that the cluster sustains at the highest constant."""
    alone = [reply for row in rows[:ISOLATED_REQUESTS] for reply in send(cluster, [row], [0.0], LOOSE_SLO_S)]
    began_s = time.perf_counter()
    send(cluster, rows, [0.0] * BURST_REQUESTS, LOOSE_SLO_S)
    sustained_rps = BURST_REQUESTS / (time.perf_counter() - began_s)
    slo_s = SLO_SCALE * summarize(alone, 1.0)["latency_s"]["mean"]
    return PolicyResults(duration_s=duration_s, slo_s=slo_s, sustained_rps=sustained_rps)


def lacks_runs(results: PolicyResults, load: float, min_runs: int) -> bool:
    """Whether a load needs another run of each row: too few, or a standard error is too large."""
    for row in ROWS:
        runs = results.of(row, load)
        if len(runs) < min_runs:
            return True
        errors = (mean_and_error(values)[1] for values in measures(runs))
        if min_runs == MIN_RUNS and max(errors) > MAX_ERROR:
            return True
    return False


def measure(
    results: PolicyResults,
    clusters: Mapping[str, LiveCluster],
    rows: Sequence[LoadRequest],
    loads: Sequence[float],
    min_runs: int,
    is_late: Callable[[], bool],
    save: Callable[[], None],
) -> None:
    """Run the loads in turn, with all rows in turn, until each load has enough runs or the time is used."""
    for number in count():
        pending = [load for load in loads if lacks_runs(results, load, min_runs)]
        if not pending:
            return
        for load in pending:
            order = [*ROWS][number % len(ROWS) :] + [*ROWS][: number % len(ROWS)]
            for row in order:
                if any(run.number == number for run in results.of(row, load)):
                    continue
                if is_late():
                    return
                run = run_once(results, clusters[row], rows, row, load, number)
                results.runs.append(run)
                save()
                print(
                    f"load {load:g}, run {number}, {row}: attainment {run.slo_attainment:.1%}, "
                    f"exact match {run.exact_match:.1%}",
                    flush=True,
                )


def run_once(
    results: PolicyResults, cluster: LiveCluster, rows: Sequence[LoadRequest], row: str, load: float, number: int
) -> LoadRun:
    """Serve one run; its number gives the arrivals and the prompts."""
    arrivals_s = poisson_arrivals(load * results.sustained_rps, results.duration_s, seed=number)
    first = number * len(rows) // MIN_RUNS % len(rows)
    replies = send(cluster, [*rows[first:], *rows[:first]], arrivals_s, results.slo_s)
    figures = summarize(replies, results.duration_s)
    return LoadRun(
        row=row,
        load=load,
        number=number,
        requests=figures["requests"],
        failed=figures["failed"],
        slo_attainment=figures["slo_attainment"],
        exact_match=figures["accuracy"],
        mean_threshold=figures["mean_threshold"],
        mean_steps=figures["mean_steps"],
        mean_s=figures["latency_s"]["mean"],
        p99_s=figures["latency_s"]["p99"],
    )


def send(
    cluster: LiveCluster, rows: Sequence[LoadRequest], arrivals_s: Sequence[float], slo_s: float
) -> list[LoadReply]:
    """Run a load, and print its failures."""
    return asyncio.run(run_load(cluster.url, RequestLoad(rows, arrivals_s, 0.0), slo_s, report_failure))


def report_failure(reply: LoadReply) -> None:
    if reply.error is not None:
        print(f"failed, sent at {reply.arrival_s:.1f} s: {reply.error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
