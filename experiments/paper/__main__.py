"""Run all studies one after another, and write their report.

python -m experiments.paper [--quick]
"""

import importlib
import platform
from pathlib import Path
from typing import Annotated

import typer

from experiments import real_world_trace
from experiments.paper.real_world import VERDICT, real_world_section
from experiments.paper.result_cache import used_cpu_s
from experiments.paper.study import Study, make, place, read_cpu_minutes, stored, write_cpu_minutes
from experiments.report import markdown_table

STUDIES = (
    "introduction",
    "benchmark_rates",
    "benchmark_slos",
    "controller",
    "algorithm_readings",
    "lengths",
    "step_prediction",
    "prediction_error",
    "migration",
    "granularity",
    "no_cache",
    "reconfiguration",
)
REAL_WORLD = "real_world_trace"  # has a command and a report of its own
# The tables and figures without a study
WITHOUT_STUDY = (
    ("DLMs against autoregressive models; latency by TP degree", "not possible without GPUs: both are measurements"),
    ("the overhead of predictions", "reproduced with the demo model: experiments/results/predictor_accuracy.md"),
    (
        "the judge's scores",
        "not possible without GPUs: the simulator has no text. `dilaserve bench` has replies judged",
    ),
)
INTRODUCTION = Path(__file__).with_name("report.md")


def main(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Short runs, to check the code; without the trace.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write below this directory, not in the repository.")] = None,
    studies: Annotated[str, typer.Option(help="Studies to run; the others use their stored figures.")] = ",".join(
        (REAL_WORLD, *STUDIES)
    ),
) -> None:
    """Run every study and write docs/paper.md with its plots. Cached results in build/paper are used."""
    directory, selected = place(quick=quick, out=out), studies.split(",")
    if REAL_WORLD in selected and not quick:
        before_s = used_cpu_s()
        real_world_trace.write_studies()
        write_cpu_minutes(directory, REAL_WORLD, (used_cpu_s() - before_s) / 60)
    sections = [real_world_section()]
    found: list[Study] = [importlib.import_module(f"experiments.paper.{name}").STUDY for name in STUDIES]
    for study in found:
        if study.name not in selected:
            sections.append(
                stored(study, directory)
                or f"## {study.title}\n\nNot run yet: `python -m experiments.paper.{study.name}`.\n"
            )
            continue
        print(f"\n{study.title}", flush=True)
        sections.append(make(study, directory, quick=quick))
    report = directory / "docs" / "paper.md"
    command = "python -m experiments.paper" + (" --quick" if quick else "")  # writes the whole page
    machine = f"one core of {platform.machine()}, Python {platform.python_version()}"
    overview = overview_table(found, read_cpu_minutes(directory))
    introduction = INTRODUCTION.read_text("utf-8").format(command=command, machine=machine, overview=overview)
    report.write_text("\n".join([introduction, *sections]), encoding="utf-8")
    print(f"\nwritten: {report}")


def overview_table(studies: list[Study], minutes: dict[str, float]) -> str:
    """One row for each table and figure of the paper: the verdict, and the CPU minutes of the study."""
    rows = [("Real-world workload", VERDICT, REAL_WORLD)]
    rows += [(study.title, study.verdict, study.name) for study in studies]
    cells = [(title, verdict, f"{minutes[name]:.0f}" if name in minutes else "") for title, verdict, name in rows]
    cells += [(title, verdict, "") for title, verdict in WITHOUT_STUDY]
    return markdown_table(("table or figure", "verdict", "CPU minutes"), cells)


if __name__ == "__main__":
    typer.run(main)
