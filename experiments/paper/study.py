"""A study, as the modules here declare it. A run stores its rows and plot; its section of the page has both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from experiments.paper.files import QUICK, ROOT
from experiments.paper.plots import Panels, draw
from experiments.paper.runs import SimulationRun, figures, shortened
from experiments.paper.tables import Row, markdown, read_table, rounded, show, write_table
from experiments.report import markdown_table

Case = tuple[Row, SimulationRun]  # the labels of a row, and the run with its figures
Comparison = tuple[str, str, str]  # the name of a figure, its value in the paper, its value here


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One table or figure of the paper."""

    name: str  # of the module and its files
    title: str
    source: str  # where in the paper
    panels: Panels
    compare: Callable[[Sequence[Row]], list[Comparison]]
    verdict: str  # whether it reproduces the paper, and if not, the cause; without a figure of its own
    remarks: str  # differences from the paper, and their reasons
    cases: Callable[[], Sequence[Case]] = tuple  # the simulations
    measure: Callable[[bool], Sequence[Row]] | None = None  # in place of them; the argument is whether to be quick
    table: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows  # the rows as readers see them

    def run(self, out: Path, *, quick: bool) -> None:
        """Write DIR/experiments/results/paper/NAME.csv and DIR/docs/paper/NAME.png."""
        found = self.measure(quick) if self.measure else simulate_cases(self.cases(), out / self._progress, quick=quick)
        rows = [rounded(row) for row in found]
        write_table(out / self._stored, rows)
        image = out / "docs" / self._image
        image.parent.mkdir(parents=True, exist_ok=True)
        draw(self.panels, rows).savefig(image, dpi=100)

    def section(self, out: Path) -> str:
        """The section of the page, with the stored rows."""
        rows = read_table(out / self._stored)
        command = f"`python -m experiments.paper.{self.name}`"
        if not rows:
            return f"## {self.title}\n\nNot run yet: {command}.\n"
        compared = markdown_table(("figure", "paper", "here"), self.compare(rows))
        return (
            f"## {self.title}\n\nThe paper: {self.source}. Run it alone: {command}.\n\n{compared}\n\n"
            f"**Verdict**: {self.verdict}.\n\n{self.remarks}\n\n![{self.title}]({self._image})\n\n"
            f"<details><summary>All figures</summary>\n\n{markdown(self.table(rows))}\n\n</details>\n"
        )

    @property
    def _stored(self) -> str:
        return f"experiments/results/paper/{self.name}.csv"

    @property
    def _image(self) -> str:
        return f"paper/{self.name}.png"

    @property
    def _progress(self) -> str:
        return f"build/paper/{self.name}.csv"


def simulate_cases(cases: Sequence[Case], progress: Path, *, quick: bool) -> list[Row]:
    """One row per case, with a line of progress for each. Rows are kept in a file, which a later call with the same
    cases continues."""
    rows = [] if quick else read_table(progress)
    labelled = [rounded(labels) for labels, _ in cases]
    if len(rows) > len(cases) or any(
        not labels.items() <= row.items() for row, labels in zip(rows, labelled, strict=False)
    ):
        rows = []
    for labels, run in cases[len(rows) :]:
        rows.append(rounded({**labels, **figures(shortened(run) if quick else run)}))
        text = ", ".join(f"{name} {show(value)}" for name, value in labels.items())
        print(f"{len(rows)}/{len(cases)} {text}: attainment {rows[-1]['SLO attainment, %']} %", flush=True)
        if not quick:
            write_table(progress, rows)
    return rows


Quick = Annotated[bool, typer.Option("--quick", help="Short runs in build/quick, to check the code.")]
Out = Annotated[Path | None, typer.Option(help="Write below this directory, not in the repository.")]


def place(*, quick: bool, out: Path | None) -> Path:
    """The directory of the output: the repository, or for quick runs one that git ignores."""
    return out or (QUICK if quick else ROOT)


def main(study: Study) -> None:
    """The command of a study's module."""

    def command(*, quick: Quick = False, out: Out = None) -> None:
        directory = place(quick=quick, out=out)
        study.run(directory, quick=quick)
        print(study.section(directory))

    command.__doc__ = f"{study.title}: print the table; write CSV and plot."
    typer.run(command)
