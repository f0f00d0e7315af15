"""The report: for each load point a table, and whether a constant wins and the target is reached."""

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path

from experiments.policies.arrivals import FLOOD_KEY
from experiments.policies.plots import draw
from experiments.policies.points import POINTS, POLICY, Point
from experiments.policies.rows import SYSTEMS
from experiments.policies.runs import Figures
from experiments.policies.verdicts import Means, means, missed, robustness, wins
from experiments.report import Report, markdown_table, target_list
from experiments.standard_errors import mean_difference

Runs = Mapping[str, Sequence[Figures]]  # by row, in the order of the seeds
NAME = "policies"  # of the files
INTRODUCTION = """\
Each run simulates 4 TP-1 instances at a quarter of the rate in the point's name, which is that of 16 instances; the
whole trace has all 16. Lengths and arrivals of a seed are the same for all rows. Differences are paired by seed; their
standard error follows after ±. A constant *wins* if it is at least 0.1 points better than the policy in attainment or
accuracy, and not at least 0.1 worse in the other. Accuracy is that of GSM8K in the steps table, at the thresholds used,
weighted by tokens, whatever the workload is. The SLO is 5 times the mean latency of the workload's requests when each
is alone. The *fluid bound* is an upper bound on the attainment of any policy: difficulties known, served at the lowest
threshold in full batches, work shared without loss."""
COLUMNS = (
    "row",
    "attainment, %",
    "GSM8K accuracy at the thresholds used, %",
    "the same, SLO met",
    "attainment of the longest tenth, %",
    "mean latency, s",
    "p99, s",
    "attainment less the policy's",
    "accuracy less the policy's",
    "CPU, s",
)


def section(name: str, runs: Runs, scores: Mapping[str, Means]) -> str:
    """The table of a point and its verdicts."""
    point = POINTS[name]
    first = next(iter(runs.values()))[0]
    load = f"{first.requests} requests, SLO {first.slo_s:.2f} s (first seed)."
    rows = [_row(row, scores[row], runs) for row in runs]
    if (policy := scores.get(POLICY)) is not None and policy.bound is not None:
        rows.append(["fluid bound", f"{policy.bound:.2f}", *["-"] * (len(COLUMNS) - 2)])
    verdict = "\n".join(f"- {line}" for line in verdicts(point, scores))
    return f"## {name}\n\n{load}\n\n{markdown_table(COLUMNS, rows)}\n\n{verdict}\n"


def verdicts(point: Point, scores: Mapping[str, Means]) -> list[str]:
    """One line each: the constants that win, the classes, the target."""
    policy = scores.get(POLICY)
    if policy is None:
        return [f"row {POLICY} is not run"]
    winners = [row for row, score in scores.items() if SYSTEMS[row].constant is not None and wins(score, policy)]
    lines = [f"constants that win: {', '.join(winners) or 'none'}"]
    if policy.attainment_per_class:
        by_key = FLOOD_KEY in policy.attainment_per_class
        classes = (
            (name if by_key else f"{name} s") + f" {attainment:.2f} %" + _accuracy(policy.accuracy_per_class.get(name))
            for name, attainment in policy.attainment_per_class.items()
        )
        lines.append(f"the policy by {'key' if by_key else 'SLO'}: {', '.join(classes)}")
    if point.target is not None:
        gaps = missed(point.target, policy)
        wanted = f"{point.target.attainment:g} / {point.target.accuracy:g}"
        lines.append(f"target {wanted}: {'MISSED: ' + ', '.join(gaps) if gaps else 'reached'}")
    return lines


def _accuracy(accuracy: float | None) -> str:
    return "" if accuracy is None else f" at accuracy {accuracy:.2f}"


def _row(row: str, score: Means, runs: Runs) -> list[str]:
    attainment = accuracy = "-"
    if POLICY in runs and row != POLICY:
        attainment = _paired([run.attainment for run in runs[row]], [run.attainment for run in runs[POLICY]])
        accuracy = _paired([run.accuracy for run in runs[row]], [run.accuracy for run in runs[POLICY]])
    return [
        row,
        f"{score.attainment:.2f}",
        f"{score.accuracy:.2f}",
        "-" if score.accuracy_met is None else f"{score.accuracy_met:.2f}",
        f"{score.attainment_longest:.1f}",
        f"{score.mean_s:.2f}",
        f"{score.p99_s:.1f}",
        attainment,
        accuracy,
        f"{score.cpu_s:.0f}",
    ]


def _paired(row: Sequence[float], policy: Sequence[float]) -> str:
    mean, error = mean_difference(row, policy)
    return f"{mean:+.2f}" + ("" if isnan(error) else f" ± {error:.2f}")


def write(found: Mapping[str, Runs], seeds: Sequence[int], out: Path) -> None:
    """Write DIR/policies.md and .png."""
    hours = sum(run.cpu_s for rows in found.values() for of_row in rows.values() for run in of_row) / 3600
    report = Report("Policies compared at many load points", INTRODUCTION, f"Seeds: {', '.join(map(str, seeds))}.")
    report.add(f"These runs took {hours:.2f} CPU hours together.")
    report.add(f"![Attainment against accuracy]({NAME}.png)")
    scores = {point: {row: means(of_row) for row, of_row in rows.items()} for point, rows in found.items()}
    report.add(*(section(point, rows, scores[point]) for point, rows in found.items()))
    if reached := robustness(scores):
        report.add("## A wrong profile, no step predictor, an overload, a flood", target_list(reached))
    report.write(out / f"{NAME}.md")
    if scores:
        draw(scores).savefig(out / f"{NAME}.png", dpi=100)
