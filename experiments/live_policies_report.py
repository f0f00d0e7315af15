"""The runs of experiments/live_policies.py, their table, plot and verdict."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from experiments.report import Report, target_list
from experiments.standard_errors import mean_and_error, mean_difference, percent

THRESHOLDS = "0.7,0.8,0.9"
CONSTANTS = ("0.7", "0.8", "0.9")
DEFAULT, PAPER = "dilaserve", "paper"
HIGHEST = f"constant {CONSTANTS[-1]}"
ROWS: Mapping[str, tuple[str, str]] = {  # policy, thresholds
    DEFAULT: (DEFAULT, THRESHOLDS),
    **{f"constant {threshold}": ("fixed", threshold) for threshold in CONSTANTS},
    PAPER: (PAPER, THRESHOLDS),
}
SLO_SCALE = 5.0  # SLO over isolated latency
LOW_LOAD = 0.4  # where the default policy must be as good as the highest constant
CERTAIN = 2.0  # standard errors
COLUMNS = (
    *("load", "requests/s", "row", "runs", "requests", "failed", "SLO attainment, %", "exact match, %"),
    *("mean threshold", "mean steps", "mean latency, s", "p99, s"),
)


class LoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """One row at one load, once."""

    row: str
    load: float
    number: int
    requests: int
    failed: int
    slo_attainment: float
    exact_match: float
    mean_threshold: float
    mean_steps: float
    mean_s: float
    p99_s: float


class PolicyResults(msgspec.Struct, kw_only=True):
    """All runs so far, in live_policies.json."""

    duration_s: float  # of the arrivals of a run
    slo_s: float
    sustained_rps: float
    runs: list[LoadRun] = []
    minutes: float = 0.0

    def of(self, row: str, load: float) -> list[LoadRun]:
        """The runs of a row at a load, by number."""
        return sorted((run for run in self.runs if (run.row, run.load) == (row, load)), key=lambda run: run.number)


def measures(runs: Sequence[LoadRun]) -> tuple[list[float], list[float]]:
    """Attainment and exact match of each run."""
    return [run.slo_attainment for run in runs], [run.exact_match for run in runs]


def cells(results: PolicyResults, row: str, load: float, runs: Sequence[LoadRun]) -> list[str]:
    """The cells of a table's row."""
    attainment, exact_match = measures(runs)
    means = [np.mean([getattr(run, name) for run in runs]) for name in ("mean_threshold", "mean_steps")]
    seconds = [np.mean([getattr(run, name) for run in runs]) for name in ("mean_s", "p99_s")]
    return [
        *(f"{load:g}", f"{load * results.sustained_rps:.1f}", row, str(len(runs))),
        *(str(sum(run.requests for run in runs)), str(sum(run.failed for run in runs))),
        *(percent(attainment), percent(exact_match), f"{means[0]:.3f}", f"{means[1]:.1f}"),
        *(f"{value:.2f}" for value in seconds),
    ]


def verdicts(results: PolicyResults, load: float) -> dict[str, bool]:
    """For each constant, that it does not win at this load; at the low load, that the highest is no better at all."""
    found = {}
    own = {run.number: run for run in results.of(DEFAULT, load)}
    for row in ROWS:
        if row in (DEFAULT, PAPER):
            continue
        pairs = [(run, own[run.number]) for run in results.of(row, load) if run.number in own]
        theirs, ours = measures([run for run, _ in pairs]), measures([run for _, run in pairs])
        gains = [mean_difference(*values) for values in zip(theirs, ours, strict=True)]
        better = [gain > CERTAIN * error for gain, error in gains]
        worse = [gain < -CERTAIN * error for gain, error in gains]
        wins = (better[0] and not worse[1]) or (better[1] and not worse[0])
        (met, met_error), (match, match_error) = gains
        found[
            f"load {load:g}: {row} does not win (attainment {100 * met:+.1f} ± {100 * met_error:.1f} points, "
            f"exact match {100 * match:+.1f} ± {100 * match_error:.1f})"
        ] = not wins
        if load == LOW_LOAD and row == HIGHEST:
            found[f"load {load:g}: as good as {row} in both measures"] = not any(better)
    return found


def write_report(results: PolicyResults, loads: Sequence[float], out: Path) -> None:
    report = Report(
        "Policies on live clusters",
        f"SLO {results.slo_s:.2f} s, {SLO_SCALE:g} times the isolated latency; a load of 1 is "
        f"{results.sustained_rps:.1f} requests/s; {results.duration_s:g} s of arrivals a run; candidate thresholds "
        f"{THRESHOLDS}. Means of the runs with standard errors, measured in {results.minutes:.0f} minutes.",
    )
    report.add_columns(*COLUMNS)
    complete = [load for load in loads if all(len(results.of(row, load)) > 1 for row in ROWS)]
    reached: dict[str, bool] = {}
    for load in complete:
        for row in ROWS:
            report.add_row(*cells(results, row, load, results.of(row, load)))
        reached |= verdicts(results, load)
    report.add(target_list(reached), f"![]({out.stem}.png)")
    report.write(out.with_suffix(".md"))
    plot(results, complete, out.with_suffix(".png"))


def plot(results: PolicyResults, loads: Sequence[float], path: Path) -> None:
    """SLO attainment and exact match over the rate, one line per row, with standard errors."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    rates = [load * results.sustained_rps for load in loads]
    for number, (axes, title) in enumerate(zip(figure.subplots(1, 2), ("SLO attainment", "exact match"), strict=True)):
        for row in ROWS:
            points = [mean_and_error(measures(results.of(row, load))[number]) for load in loads]
            means, errors = 100 * np.array(points).reshape(-1, 2).T
            axes.errorbar(rates, means, errors, marker="o", capsize=3, label=row)
        axes.set(xlabel="requests/s", ylabel="%", title=title)
        axes.legend()
    figure.savefig(path, dpi=120)
