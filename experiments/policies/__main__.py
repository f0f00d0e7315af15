"""Compare the policy with constant thresholds, the paper's policy and the baselines at many load points.

    python -m experiments.policies [--points 'gsm8k*'] [--rows 'infaas*,dilaserve'] [--seeds 0,1,2] [--quick] [--final]

Each finished run is stored in policies.csv beside the report, so the command can be stopped, and resumes where it
stopped. The report has all stored runs of these seeds. `--final` runs the seeds that guided no choice, and writes the
files into the repository.
"""

from pathlib import Path
from typing import Annotated

import typer

from experiments.paper.files import QUICK
from experiments.policies.points import POINTS, QUICK_POINTS
from experiments.policies.rows import SYSTEMS
from experiments.policies.store import RunStore
from experiments.policies.study import by_point, runs_of, selected, simulate_all
from experiments.policies.tables import NAME, write
from experiments.report import RESULTS

CHOICE_SEEDS, FINAL_SEEDS, QUICK_SEEDS = "0,1,2", "10,11,12", "0"


def main(
    *,
    points: Annotated[str, typer.Option(help="Load points, comma-separated; * matches any text.")] = "*",
    rows: Annotated[str, typer.Option(help="Rows, likewise.")] = "*",
    seeds: Annotated[str | None, typer.Option(help=f"Seeds, comma-separated; default: {CHOICE_SEEDS}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three points, one seed.")] = False,
    final: Annotated[bool, typer.Option("--final", help="The seeds that guided no choice; stores the report.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Run these also if they are stored.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Directory of the report.")] = None,
) -> None:
    """Run what is not stored, then write the tables and the plot."""
    given = seeds or (FINAL_SEEDS if final else QUICK_SEEDS if quick else CHOICE_SEEDS)
    numbers = [int(seed) for seed in given.split(",")]
    names = selected(POINTS, ",".join(QUICK_POINTS) if quick and points == "*" else points)
    directory = out or (RESULTS if final else QUICK / NAME)
    store = RunStore(directory / f"{NAME}.csv")
    wanted = runs_of(names, selected(SYSTEMS, rows), numbers)
    simulate_all(wanted, store, jobs, again=again)
    write(by_point(runs_of(list(POINTS), list(SYSTEMS), numbers), store), numbers, directory)


if __name__ == "__main__":
    typer.run(main)
