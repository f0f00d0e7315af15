"""A study, as the modules here declare it, and its outputs: table, CSV, plot, section of the report."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isnan
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from experiments.paper.files import QUICK, ROOT
from experiments.paper.plots import Panels, draw
from experiments.paper.result_cache import used_cpu_s
from experiments.paper.runs import SimulationRun, figures
from experiments.report import markdown_table

Value = str | float
Row = Mapping[str, Value]
QUICK_REQUESTS = 200  # per run: enough to check the code, too few to show a lasting load

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
    measure: Callable[[bool], list[Row]] | None = None  # in place of simulations; the argument is whether to be quick
    table: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows  # the rows as readers see them


def simulate_cases(cases: Sequence[Case], *, quick: bool) -> list[Row]:
    """One row per case; prints a line of progress for each."""
    rows: list[Row] = []
    for number, (labels, run) in enumerate(cases, 1):
        smaller = replace(run, requests=min(run.requests or QUICK_REQUESTS, QUICK_REQUESTS)) if quick else run
        found = figures(smaller)
        rows.append({**labels, **found})
        text = ", ".join(f"{name} {show(value)}" for name, value in labels.items())
        print(f"{number}/{len(cases)} {text}: attainment {found['SLO attainment, %']:.1f} %", flush=True)
    return rows


def pick(rows: Sequence[Row], **labels: Value) -> list[Row]:
    """The rows with these labels; `_` in a label's name is a space."""
    wanted = {name.replace("_", " "): value for name, value in labels.items()}
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


@dataclass(frozen=True, slots=True)
class Gain:
    """The difference between two systems at one setting. Units: points."""

    attainment: float
    accuracy: float


def gains(rows: Sequence[Row], than: str, system: str = "DiLaServe") -> list[Gain]:
    """The gains of `system` over `than`, at each setting of both, in order."""
    keys = ("SLO attainment, %", "accuracy, %")
    return [
        Gain(*(number(better, key) - number(worse, key) for key in keys))
        for better, worse in product(pick(rows, system=system), pick(rows, system=than))
        if settings(better) == settings(worse)
    ]


def widest_gain(rows: Sequence[Row], than: str, system: str = "DiLaServe", least: float = -inf) -> str:
    """The widest gain in attainment where accuracy changes by at least `least` points, and that change."""
    allowed = [gain for gain in gains(rows, than, system) if isnan(gain.accuracy) or gain.accuracy >= least]
    best = max(allowed, key=lambda gain: gain.attainment)
    accuracy = "not known" if isnan(best.accuracy) else f"{best.accuracy:+.1f} points there"
    return f"{best.attainment:+.1f} points, accuracy {accuracy}"


def settings(row: Row) -> dict[str, Value]:
    """The labels of a row, which precede its figures, without the system."""
    keys = list(row)
    return {key: row[key] for key in keys[: keys.index("SLO attainment, %")] if key != "system"}


def number(row: Row, key: str) -> float:
    value = row[key]
    assert isinstance(value, int | float), f"{key} is a number"
    return float(value)


def show(value: Value) -> str:
    """The text of a table's cell; a figure that does not exist is a dash."""
    if isinstance(value, str):
        return value
    if isnan(value):
        return "-"
    if value == int(value):
        return f"{value:.0f}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.1f}"


def markdown(rows: Sequence[Row]) -> str:
    """A table; all rows have the keys of the first."""
    return markdown_table(rows[0], ([show(row[key]) for key in rows[0]] for row in rows))


def section(study: Study, rows: Sequence[Row], image: str) -> str:
    """The study's section of the report; `image` is the plot's path in it."""
    compared = markdown_table(("figure", "paper", "here"), study.compare(rows))
    return (
        f"## {study.title}\n\nThe paper: {study.source}. Run it alone: `python -m experiments.paper.{study.name}`.\n\n"
        f"{compared}\n\n**Verdict**: {study.verdict}.\n\n{study.remarks}\n\n"
        f"![{study.title}]({image})\n\n<details><summary>All figures</summary>\n\n"
        f"{markdown(study.table(rows))}\n\n</details>\n"
    )


def make(study: Study, out: Path, *, quick: bool) -> str:
    """Measure, write DIR/experiments/results/paper/NAME.csv and DIR/docs/paper/NAME.png. Returns: the section."""
    before_s = used_cpu_s()
    measured = study.measure(quick) if study.measure else simulate_cases(study.cases(), quick=quick)
    rows = [_rounded(row) for row in measured]
    images = out / "docs" / "paper"
    for directory in (_csv(study, out).parent, images):
        directory.mkdir(parents=True, exist_ok=True)
    with _csv(study, out).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    write_cpu_minutes(out, study.name, (used_cpu_s() - before_s) / 60)
    draw(study.panels, rows).savefig(images / f"{study.name}.png", dpi=100)
    return section(study, rows, _image(study))


def stored(study: Study, out: Path) -> str | None:
    """The section with the stored figures; None if there are none."""
    if not _csv(study, out).exists():
        return None
    with _csv(study, out).open(encoding="utf-8", newline="") as file:
        rows = [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]
    return section(study, rows, _image(study))


def read_cpu_minutes(out: Path) -> dict[str, float]:
    """CPU minutes of each study that was run, by name."""
    file = _results(out) / "cpu_minutes.json"
    return msgspec.json.decode(file.read_bytes(), type=dict[str, float]) if file.exists() else {}


def write_cpu_minutes(out: Path, study: str, minutes: float) -> None:
    found = read_cpu_minutes(out) | {study: round(minutes, 1)}
    encoded = msgspec.json.format(msgspec.json.encode(found, order="sorted"))
    (_results(out) / "cpu_minutes.json").write_bytes(encoded + b"\n")


def _results(out: Path) -> Path:
    return out / "experiments" / "results" / "paper"


def _csv(study: Study, out: Path) -> Path:
    return _results(out) / f"{study.name}.csv"


def _image(study: Study) -> str:
    return f"paper/{study.name}.png"


def _value(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text


def _rounded(row: Row) -> Row:
    return {key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()}


def place(*, quick: bool, out: Path | None) -> Path:
    """The directory of the output: the repository, or for quick runs one that git ignores."""
    return out or (QUICK if quick else ROOT)


def main(study: Study) -> None:
    """The command of a study's module."""

    def command(
        *,
        quick: Annotated[bool, typer.Option("--quick", help="Short runs, to check the code.")] = False,
        out: Annotated[Path | None, typer.Option(help="Write below this directory, not in the repository.")] = None,
    ) -> None:
        print(make(study, place(quick=quick, out=out), quick=quick))

    command.__doc__ = f"{study.title}: print the table; write CSV and plot."
    typer.run(command)
