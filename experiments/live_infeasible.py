"""A live cluster of the demo model on which a fifth of the requests ask for a latency of 1 ms, beside the same load
without: what the other requests lose.

python -m experiments.live_infeasible

In each pair of runs the same prompts arrive at the same times, and differ only in the SLO of every fifth. The SLO of
the others and the sustained rate are measured first, as by `experiments.live_policies`. It needs a quiet machine.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import typer
from msgspec.structs import replace

from dilaserve.load.client import LoadReply
from dilaserve.load.workload import LoadRequest, poisson_arrivals
from experiments.live_cluster import one_instance, unlearnt_requests
from experiments.live_policies import LOOSE_SLO_S, OUTPUT_TOKENS, PROFILE, calibrate, send
from experiments.report import RESULTS, Report, markdown_table, target_list
from experiments.standard_errors import mean_and_error
from shared.arrays import Float64

NAME = "live_infeasible"
EVERY, HASTY_SLO_S = 5, 0.001
MAX_LOSS = 1.0  # points of attainment, and of exact match
COLUMNS = ("", "attainment, %", "exact match, %", "mean latency, s")


def main(
    *,
    load: Annotated[float, typer.Option(help="Share of the sustained rate.")] = 0.7,
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of runs.")] = 20,
    duration: Annotated[float, typer.Option(help="Seconds of arrivals of a run.")] = 20.0,
) -> None:
    """Print the table and the verdict, and write them."""
    rows = unlearnt_requests(OUTPUT_TOKENS)
    figures: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    with one_instance("--thresholds", "0.7,0.75,0.8,0.85,0.9", "--profile", PROFILE) as cluster:
        send(cluster, rows, poisson_arrivals(4, 5, seed=99), LOOSE_SLO_S)
        found = calibrate(cluster, rows, duration)
        for number in range(pairs):
            arrivals_s = poisson_arrivals(load * found.sustained_rps, duration, seed=number)
            first = EVERY * (number * len(arrivals_s) // EVERY % (len(rows) // EVERY))
            for hasty in (False, True) if number % 2 else (True, False):
                prompts = with_hasty([*rows[first:], *rows[:first]], HASTY_SLO_S if hasty else None)
                figures[hasty].append(figures_of(send(cluster, prompts, arrivals_s, found.slo_s)))
                print(f"pair {number}, {'with' if hasty else 'without'}: {figures[hasty][-1]}", flush=True)
    report = Report(
        "A fifth of the requests with an SLO of 1 ms",
        f"The other requests, in the mean of {pairs} pairs of runs; SLO {found.slo_s:.2f} s.",
        f"Load {load:g} of {found.sustained_rps:.1f} requests/s.",
    )
    names = {False: "without such requests", True: "with them"}
    report.add(markdown_table(COLUMNS, [[names[hasty], *cells(np.array(figures[hasty]))] for hasty in names]))
    changes = 100 * (np.array(figures[True]) - np.array(figures[False]))[:, :2]
    reached = {}
    for name, column in zip(("attainment", "exact match"), changes.T, strict=True):
        mean, error = mean_and_error(column.tolist())
        reached[f"{name} {mean:+.2f} ± {error:.2f} points (target: at least -{MAX_LOSS:g})"] = mean >= -MAX_LOSS
    report.add(target_list(reached))
    report.write(RESULTS / f"{NAME}.md")


def with_hasty(rows: Sequence[LoadRequest], slo_s: float | None) -> list[LoadRequest]:
    """The requests, every fifth with this SLO."""
    return [replace(row, slo_s=slo_s) if n % EVERY == 0 else row for n, row in enumerate(rows)]


def figures_of(replies: Sequence[LoadReply]) -> tuple[float, float, float]:
    """Attainment, exact match and mean latency in seconds of those without the SLO of 1 ms."""
    others = [reply for n, reply in enumerate(replies) if n % EVERY]
    columns = ([r.slo_met for r in others], [bool(r.correct) for r in others], [r.latency_s for r in others])
    attainment, exact, latency_s = (float(np.mean(column)) for column in columns)
    return attainment, exact, latency_s


def cells(figures: Float64) -> list[str]:
    """Shapes: [runs, 3]."""
    attainment, exact, latency_s = figures.mean(axis=0).tolist()
    return [f"{100 * attainment:.1f}", f"{100 * exact:.1f}", f"{latency_s:.2f}"]


if __name__ == "__main__":
    typer.run(main)
