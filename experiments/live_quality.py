"""Where all requests meet their SLO at the highest threshold, the default policy must give no quality away.

python -m experiments.live_quality

One instance of the demo model serves a closed loop: a fixed number of requests at a time, over the 500 held-out
problems from which the step predictor did not learn. At each concurrency the p99 latency is measured at a quality floor
of 0.9. The SLO is 1.15 times that. Then the default policy serves the problems at that SLO in turn with a floor of 0.9,
three runs each, on the same cluster. The order of the two alternates.

It needs a quiet machine and takes about 15 minutes on two cores. Stored runs are not repeated; `--afresh` discards
them.

Standard errors: of a difference of exact match over the problems, each the mean of its runs, since the answers at one
threshold are the same in each run; of SLO met and its difference over the runs.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from dilaserve.load.workload import LoadRequest
from experiments.closed_loop import closed_loop
from experiments.live_cluster import LiveCluster, measure_profile, one_instance, unlearnt_requests
from experiments.report import RESULTS, Report, target_list
from experiments.standard_errors import mean_difference, percent
from experiments.stored_runs import read_runs, write_runs

STORE = RESULTS / "live_quality.json"
PROFILE = RESULTS / "live_quality_profile.csv"
OUTPUT_TOKENS = 64
HIGHEST = 0.9
SLO_SCALE = 1.15  # SLO over the p99 latency at HIGHEST
LOOSE_SLO_S = 60.0  # always met
WARM_UP_ROWS, WARM_UP_CONCURRENCY = 60, 8
POLICY, FLOOR = "default policy", f"{HIGHEST} throughout"
MAX_MATCH_LOSS, MAX_SLO_LOSS = 2.0, 1.0  # points
COLUMNS = (
    *("concurrency", "SLO, ms", "thresholds", "runs", "exact match, %", "SLO met, %", "mean threshold", "mean steps"),
    *("mean latency, ms", "p99, ms", "requests/s"),
)


class LoopRun(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over the problems."""

    slo_s: float
    correct: list[bool]
    slo_met: list[bool]
    latency_s: list[float]
    mean_threshold: float
    mean_steps: float
    duration_s: float


class ConcurrencyRuns(msgspec.Struct, kw_only=True):
    """The runs at one concurrency."""

    slo_s: float
    runs: dict[str, list[LoopRun]]  # by POLICY and FLOOR


class QualityResults(msgspec.Struct, kw_only=True):
    """All runs so far, in live_quality.json."""

    problems: int
    at: dict[int, ConcurrencyRuns] = {}  # by concurrency


def main(
    *,
    concurrency: Annotated[str, typer.Option(help="Requests at a time.")] = "4,8,16,32",
    runs: Annotated[int, typer.Option(min=1, help="Runs of each at each concurrency.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="100 problems and one run: two minutes.")] = False,
    afresh: Annotated[bool, typer.Option("--afresh", help="Discard the stored runs.")] = False,
    out: Annotated[Path, typer.Option(help="File of the stored runs; the report is beside it.")] = STORE,
) -> None:
    """Print the table, and whether the targets are reached."""
    rows = unlearnt_requests(OUTPUT_TOKENS)
    rows, runs = (rows[:100], 1) if quick else (rows, runs)
    results = None if afresh else read_runs(out, QualityResults)
    if results is None or results.problems != len(rows):
        results = QualityResults(problems=len(rows))
    wanted = [int(number) for number in concurrency.split(",")]
    began_s = time.monotonic()
    if any(lacks_runs(results, number, runs) for number in wanted):
        if not results.at or not PROFILE.exists():
            measure_profile(PROFILE)
        with one_instance("--profile", PROFILE) as cluster:
            closed_loop(cluster.url, rows[:WARM_UP_ROWS], WARM_UP_CONCURRENCY, LOOSE_SLO_S, {})
            for number in wanted:
                measure(cluster, rows, number, runs, results, lambda: write_runs(out, results))
    report(results, wanted, (time.monotonic() - began_s) / 60, out.with_suffix(".md"))


def lacks_runs(results: QualityResults, concurrency: int, runs: int) -> bool:
    known = results.at.get(concurrency)
    return known is None or any(len(of_one) < runs for of_one in known.runs.values())


def measure(
    cluster: LiveCluster,
    rows: Sequence[LoadRequest],
    concurrency: int,
    runs: int,
    results: QualityResults,
    save: Callable[[], None],
) -> None:
    """Measure the SLO of one concurrency if it is not known, then the missing runs, in turn."""
    if concurrency not in results.at:
        latency_s = run_once(cluster, rows, concurrency, LOOSE_SLO_S, FLOOR).latency_s
        slo_s = SLO_SCALE * float(np.percentile(latency_s, 99))
        results.at[concurrency] = ConcurrencyRuns(slo_s=slo_s, runs={POLICY: [], FLOOR: []})
        save()
    known = results.at[concurrency]
    for number in range(runs):
        for thresholds in (POLICY, FLOOR) if number % 2 == 0 else (FLOOR, POLICY):
            if len(known.runs[thresholds]) <= number:
                run = run_once(cluster, rows, concurrency, known.slo_s, thresholds)
                known.runs[thresholds].append(run)
                save()
                print(
                    f"concurrency {concurrency}, {thresholds}: exact match {100 * np.mean(run.correct):.1f} %, "
                    f"SLO met {100 * np.mean(run.slo_met):.1f} %",
                    flush=True,
                )


def run_once(
    cluster: LiveCluster, rows: Sequence[LoadRequest], concurrency: int, slo_s: float, thresholds: str
) -> LoopRun:
    """One pass over the problems. Raises: RuntimeError if a request fails."""
    fields = {"min_threshold": HIGHEST} if thresholds == FLOOR else {}
    replies, duration_s = closed_loop(cluster.url, rows, concurrency, slo_s, fields)
    if failed := [reply.error for reply in replies if reply.error is not None]:
        raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
    return LoopRun(
        slo_s=slo_s,
        correct=[bool(reply.correct) for reply in replies],
        slo_met=[reply.slo_met for reply in replies],
        latency_s=[round(reply.latency_s, 4) for reply in replies],
        mean_threshold=float(np.mean([reply.mean_threshold for reply in replies])),
        mean_steps=float(np.mean([reply.steps for reply in replies])),
        duration_s=duration_s,
    )


def by_problem(runs: Sequence[LoopRun]) -> list[float]:
    """The share of the runs that solved each problem."""
    shares: list[float] = np.mean([run.correct for run in runs], axis=0).tolist()
    return shares


def slo_shares(runs: Sequence[LoopRun]) -> list[float]:
    """The share of the requests that met their SLO, by run."""
    return [float(np.mean(run.slo_met)) for run in runs]


def cells(concurrency: int, thresholds: str, runs: Sequence[LoopRun]) -> list[str]:
    """The cells of a row."""
    latency_ms = 1000 * np.concatenate([run.latency_s for run in runs])
    requests_per_s = np.mean([len(run.correct) / run.duration_s for run in runs])
    return [
        *(str(concurrency), f"{1000 * runs[0].slo_s:.0f}", thresholds, str(len(runs))),
        *(percent(by_problem(runs)), percent(slo_shares(runs))),
        f"{np.mean([run.mean_threshold for run in runs]):.3f}",
        f"{np.mean([run.mean_steps for run in runs]):.1f}",
        *(f"{latency_ms.mean():.0f}", f"{np.percentile(latency_ms, 99):.0f}", f"{requests_per_s:.1f}"),
    ]


def targets(concurrency: int, known: ConcurrencyRuns) -> dict[str, bool]:
    """Each target of one concurrency, and whether it is reached."""
    own, floor = known.runs[POLICY], known.runs[FLOOR]
    match, match_error = mean_difference(by_problem(own), by_problem(floor))
    count = min(len(own), len(floor))
    met, met_error = mean_difference(slo_shares(own)[:count], slo_shares(floor)[:count])
    return {
        f"concurrency {concurrency}: exact match {100 * match:+.1f} ± {100 * match_error:.1f} points against {FLOOR} "
        f"(target: at least -{MAX_MATCH_LOSS:g})": 100 * match >= -MAX_MATCH_LOSS,
        f"concurrency {concurrency}: SLO met {100 * met:+.1f} ± {100 * met_error:.1f} points "
        f"(target: at least -{MAX_SLO_LOSS:g})": 100 * met >= -MAX_SLO_LOSS,
    }


def report(results: QualityResults, wanted: Sequence[int], minutes: float, path: Path) -> None:
    text = Report(
        "Quality in a closed loop",
        f"{results.problems} problems per run, {OUTPUT_TOKENS} output tokens, one instance with one thread. The SLO is "
        f"{SLO_SCALE:g} times the p99 latency at {FLOOR}. Exact match and SLO met with standard errors; "
        f"measured in {minutes:.0f} minutes.",
    )
    text.add_columns(*COLUMNS)
    for concurrency in wanted:
        for thresholds, runs in results.at[concurrency].runs.items():
            text.add_row(*cells(concurrency, thresholds, runs))
    reached: dict[str, bool] = {}
    for concurrency in wanted:
        reached |= targets(concurrency, results.at[concurrency])
    text.add(target_list(reached))
    text.write(path)


if __name__ == "__main__":
    typer.run(main)
