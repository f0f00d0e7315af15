"""Run all studies one after another, and write their report.

python -m experiments.paper [--quick]
"""

import importlib
import platform
from pathlib import Path
from typing import Annotated

import typer

from experiments.paper.real_world import real_world_section
from experiments.paper.study import Study, make, place, stored

STUDIES = (
    "benchmark_rates",
    "benchmark_slos",
    "controller",
    "lengths",
    "step_prediction",
    "prediction_error",
    "migration",
    "granularity",
    "no_cache",
    "reconfiguration",
)
INTRODUCTION = Path(__file__).with_name("report.md")


def main(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Short runs, to check the code.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write below this directory, not in the repository.")] = None,
    studies: Annotated[str, typer.Option(help="Studies to run; the others use their stored figures.")] = ",".join(
        STUDIES
    ),
) -> None:
    """Run every study and write docs/paper.md with its plots. Cached results in build/paper are used."""
    directory = place(quick=quick, out=out)
    sections = [real_world_section()]
    for name in STUDIES:
        study: Study = importlib.import_module(f"experiments.paper.{name}").STUDY
        if name not in studies.split(","):
            sections.append(
                stored(study, directory) or f"## {study.title}\n\nNot run yet: `python -m experiments.paper.{name}`.\n"
            )
            continue
        print(f"\n{study.title}", flush=True)
        sections.append(make(study, directory, quick=quick))
    report = directory / "docs" / "paper.md"
    command = "python -m experiments.paper" + (" --quick" if quick else "")  # writes the whole page
    machine = f"one core of {platform.machine()}, Python {platform.python_version()}"
    introduction = INTRODUCTION.read_text("utf-8").format(command=command, machine=machine)
    report.write_text("\n".join([introduction, *sections]), encoding="utf-8")
    print(f"\nwritten: {report}")


if __name__ == "__main__":
    typer.run(main)
